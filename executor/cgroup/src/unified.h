// Operations of the cgroup2 tree: freeze, kill, wait, remove. They need no controllers, so they are
// the same on a hybrid and on a pure cgroup2 machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace esker {

// Waits until cgroup.events of the cgroup says `key` `value` ("populated", "frozen"). The kernel
// wakes us on each change (POLLPRI); DEADLINE_EXCEEDED otherwise.
Status WaitCgroupEvent(int dirfd, const char* key, uint64_t value, int timeout_ms);

Status FreezeCgroup(int dirfd, int timeout_ms);
Status ThawCgroup(int dirfd);
// Kills all in it and below, frozen or not, forking or not, and waits until none is left.
Status KillCgroup(int dirfd, int timeout_ms, int last);

// Names of the child cgroups.
Result<std::vector<std::string>> ListCgroups(int dirfd);

// rmdir of `name` below dirfd with everything beneath, deepest first. Missing is OK. EBUSY while it
// has processes.
Status RemoveCgroupTree(int dirfd, const std::string& name);

}  // namespace esker
