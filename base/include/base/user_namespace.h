// User namespaces as descriptors, for id-mapped mounts and for processes that enter them later.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker {

// A new user namespace that maps its ids 0 .. size-1 to first_id .. of the caller's, users and
// groups alike. It lives as long as its descriptor. Needs CAP_SETUID and CAP_SETGID; blocks for
// about 0.3 ms (a process is started and reaped). Thread-safe.
Result<UniqueFd> MakeUserNamespace(uint32_t first_id, uint32_t size);

}  // namespace esker
