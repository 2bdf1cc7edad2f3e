// What the machine lacks (executor/host_features.h), and what its configuration costs. Each check
// proves one thing by doing it, in a temporary directory, and leaves nothing behind.
#pragma once

#include <string>
#include <vector>

#include "executor/host_features.h"

namespace esker::cli {

// `data` is where the server keeps or would keep its data, `store` the store: their file systems
// are measured. Needs root for most checks; says so in their findings otherwise.
std::vector<Finding> RunDoctorChecks(const std::string& data, const std::string& store);

}  // namespace esker::cli
