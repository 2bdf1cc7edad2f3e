// The files of the memory, pids and cpu controllers, in both versions: writing limits and reading
// usage. Everything here works on an open directory of one cgroup.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "executor/cgroup.h"

namespace esker {

enum class Controller { kMemory, kPids, kCpu };
enum class CgroupVersion { kV1, kV2 };

// Name as in cgroup.controllers and in v1's mount options.
std::string_view ControllerName(Controller controller);

// Writes the part of `limits` that belongs to `controller`. `fresh`: the cgroup was just made, so
// that what is unlimited need not be written.
Status ApplyLimits(Controller controller, CgroupVersion version, int dirfd,
                   const CgroupLimits& limits, bool fresh);
// Whether `limits` asks anything of this controller.
bool NeedsController(Controller controller, const CgroupLimits& limits);
// Fills in the part of `usage` that this controller knows (cpu: only throttling).
Status ReadUsage(Controller controller, CgroupVersion version, int dirfd, CgroupUsage& usage);
// How many processes the memory limit of this directory of the memory controller has killed.
Result<uint64_t> ReadOomKills(CgroupVersion version, int dirfd);
// Total CPU time of a cgroup2 directory, which the kernel keeps without a cpu controller too.
Result<uint64_t> ReadUnifiedCpuNanos(int dirfd);

// One small file of a cgroup. NOT_FOUND if it does not exist.
Result<std::string> ReadCgroupFile(int dirfd, const char* name);
// A number, "max" being UINT64_MAX.
Result<uint64_t> ReadCgroupNumber(int dirfd, const char* name);
// The value of `key` in the lines "key value"; 0 if there is no such line.
uint64_t FindKey(std::string_view text, std::string_view key);
// cpu.weight that corresponds to v1's cpu.shares, by the mapping that container runtimes share
// (2..262144 onto 1..10000, 0 onto the default).
uint32_t WeightFromShares(uint32_t shares);

}  // namespace esker
