// Failure points: named places at every durable step where a test can make the process die or fail.
//
// Armed by the environment variable ESKER_FAILPOINTS="name=kill,name=error:28,name=kill@3" read at
// first use ("@3": on the third hit; error takes an errno). Unarmed points cost one atomic load.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace esker {

// OK, or the injected error; with `kill` the process ends by SIGKILL here. Thread-safe.
Status HitFailPoint(std::string_view name);

// Replaces what is armed (same syntax); for tests inside one process.
Status ArmFailPoints(std::string_view specification);
// Names hit so far in this process while any point was armed (arm "record" to only collect).
std::vector<std::string> HitFailPoints();

}  // namespace esker

#define ESKER_FAILPOINT(name) ESKER_RETURN_IF_ERROR(::esker::HitFailPoint(name))
