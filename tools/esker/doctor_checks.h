// Each check proves one thing by doing it, in a temporary directory, and leaves nothing behind.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace esker::cli {

enum class Verdict { kWorks, kFallsBack, kMissing };

struct Finding {
  std::string name;
  Verdict verdict = Verdict::kWorks;
  std::string detail;  // what was seen; for a fallback also what it costs
};

// `data` is where the server keeps or would keep its data, `store` the store: their file systems
// are measured. Needs root for most checks; says so in their findings otherwise.
std::vector<Finding> RunDoctorChecks(const std::string& data, const std::string& store);

}  // namespace esker::cli
