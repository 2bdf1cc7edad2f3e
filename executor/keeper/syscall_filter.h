// The seccomp filter that every process of a sandbox but its PID 1 runs under.
//
// One table decides: what a program in a sandbox may need is allowed, what administers the machine
// is EPERM, what we pretend not to have is ENOSYS (programs then use the older way), and numbers
// that are newer than the table are ENOSYS too. So it is an allow-list, but the program is a binary
// search over the table's ranges: seven comparisons at most, and cheap to install.
#pragma once

#include <linux/filter.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker::keeper {

// A classic BPF program for this machine's ABI; other ABIs get ENOSYS.
std::vector<sock_filter> BuildSyscallFilter();

// The program's bytes in a sealed memory file; what init gets as fd 5.
Result<UniqueFd> MakeFilterFile(const std::vector<sock_filter>& program);

}  // namespace esker::keeper
