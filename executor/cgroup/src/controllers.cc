#include "controllers.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>

#include "base/io.h"

namespace esker {
namespace {

constexpr uint64_t kPeriodMicros = 100'000;
constexpr uint64_t kLeastQuotaMicros = 1'000;  // the kernel refuses less
constexpr uint64_t kV1Unlimited = 1ull << 62;  // v1 says "no limit" with a huge page-aligned number

Status WriteNumber(int dirfd, const char* name, uint64_t value) {
  return WriteStringToFileAt(dirfd, name, std::to_string(value));
}

bool Missing(const Status& status) { return status.error_number() == ENOENT; }

// A limit with its swap twin: the kernel wants memory <= memory+swap at every moment, so the order
// depends on the direction.
Status ApplyMemoryV1(int dirfd, uint64_t bytes) {
  const char* limit = "memory.limit_in_bytes";
  const char* with_swap = "memory.memsw.limit_in_bytes";
  std::string text = bytes == 0 ? "-1" : std::to_string(bytes);
  Result<uint64_t> old = ReadCgroupNumber(dirfd, with_swap);
  if (!old.ok()) {
    if (!Missing(old.status())) return old.status();
    return WriteStringToFileAt(dirfd, limit, text);
  }
  bool raising = bytes == 0 || bytes > *old;
  ESKER_RETURN_IF_ERROR(WriteStringToFileAt(dirfd, raising ? with_swap : limit, text));
  return WriteStringToFileAt(dirfd, raising ? limit : with_swap, text);
}

Status ApplyMemoryV2(int dirfd, uint64_t bytes) {
  ESKER_RETURN_IF_ERROR(
      WriteStringToFileAt(dirfd, "memory.max", bytes == 0 ? "max" : std::to_string(bytes)));
  Status swap = WriteStringToFileAt(dirfd, "memory.swap.max", bytes == 0 ? "max" : "0");
  return Missing(swap) ? OkStatus() : swap;  // no such file: the kernel has no swap accounting
}

Status ApplyPids(int dirfd, uint64_t pids) {
  return WriteStringToFileAt(dirfd, "pids.max", pids == 0 ? "max" : std::to_string(pids));
}

uint64_t QuotaMicros(double cpus) {
  return std::max(kLeastQuotaMicros, static_cast<uint64_t>(std::llround(cpus * kPeriodMicros)));
}

Status ApplyCpuV1(int dirfd, const CgroupLimits& limits, bool fresh) {
  if (limits.cpus > 0) {
    ESKER_RETURN_IF_ERROR(WriteNumber(dirfd, "cpu.cfs_period_us", kPeriodMicros));
    ESKER_RETURN_IF_ERROR(WriteNumber(dirfd, "cpu.cfs_quota_us", QuotaMicros(limits.cpus)));
  } else if (!fresh) {
    ESKER_RETURN_IF_ERROR(WriteStringToFileAt(dirfd, "cpu.cfs_quota_us", "-1"));
  }
  if (fresh && limits.cpu_shares == 0) return OkStatus();
  return WriteNumber(dirfd, "cpu.shares", limits.cpu_shares == 0 ? 1024 : limits.cpu_shares);
}

Status ApplyCpuV2(int dirfd, const CgroupLimits& limits, bool fresh) {
  if (limits.cpus > 0 || !fresh) {
    std::string quota = limits.cpus > 0 ? std::to_string(QuotaMicros(limits.cpus)) : "max";
    ESKER_RETURN_IF_ERROR(
        WriteStringToFileAt(dirfd, "cpu.max", quota + " " + std::to_string(kPeriodMicros)));
  }
  if (fresh && limits.cpu_shares == 0) return OkStatus();
  return WriteNumber(dirfd, "cpu.weight", WeightFromShares(limits.cpu_shares));
}

Status ReadMemoryV1(int dirfd, CgroupUsage& usage) {
  ESKER_ASSIGN_OR_RETURN(usage.memory_bytes, ReadCgroupNumber(dirfd, "memory.usage_in_bytes"));
  ESKER_ASSIGN_OR_RETURN(usage.memory_peak_bytes,
                         ReadCgroupNumber(dirfd, "memory.max_usage_in_bytes"));
  ESKER_ASSIGN_OR_RETURN(uint64_t limit, ReadCgroupNumber(dirfd, "memory.limit_in_bytes"));
  usage.memory_limit_bytes = limit >= kV1Unlimited ? 0 : limit;
  ESKER_ASSIGN_OR_RETURN(usage.oom_kills, ReadOomKills(CgroupVersion::kV1, dirfd));
  return OkStatus();
}

Status ReadMemoryV2(int dirfd, CgroupUsage& usage) {
  ESKER_ASSIGN_OR_RETURN(usage.memory_bytes, ReadCgroupNumber(dirfd, "memory.current"));
  Result<uint64_t> peak = ReadCgroupNumber(dirfd, "memory.peak");  // since Linux 5.19
  if (!peak.ok() && !Missing(peak.status())) return peak.status();
  usage.memory_peak_bytes = peak.ok() ? *peak : 0;
  ESKER_ASSIGN_OR_RETURN(uint64_t limit, ReadCgroupNumber(dirfd, "memory.max"));
  usage.memory_limit_bytes = limit == UINT64_MAX ? 0 : limit;
  ESKER_ASSIGN_OR_RETURN(usage.oom_kills, ReadOomKills(CgroupVersion::kV2, dirfd));
  return OkStatus();
}

Status ReadPids(int dirfd, CgroupUsage& usage) {
  ESKER_ASSIGN_OR_RETURN(usage.pids, ReadCgroupNumber(dirfd, "pids.current"));
  ESKER_ASSIGN_OR_RETURN(std::string events, ReadCgroupFile(dirfd, "pids.events"));
  usage.pids_limit_hits = FindKey(events, "max");
  return OkStatus();
}

Status ReadThrottling(CgroupVersion version, int dirfd, CgroupUsage& usage) {
  ESKER_ASSIGN_OR_RETURN(std::string stat, ReadCgroupFile(dirfd, "cpu.stat"));
  usage.cpu_throttled_nanos = version == CgroupVersion::kV1
                                  ? FindKey(stat, "throttled_time")
                                  : FindKey(stat, "throttled_usec") * 1000;
  return OkStatus();
}

}  // namespace

std::string_view ControllerName(Controller controller) {
  switch (controller) {
    case Controller::kMemory:
      return "memory";
    case Controller::kPids:
      return "pids";
    case Controller::kCpu:
      break;
  }
  return "cpu";
}

bool NeedsController(Controller controller, const CgroupLimits& limits) {
  switch (controller) {
    case Controller::kMemory:
      return limits.memory_bytes != 0;
    case Controller::kPids:
      return limits.pids != 0;
    case Controller::kCpu:
      break;
  }
  return limits.cpus > 0 || limits.cpu_shares != 0;
}

Status ApplyLimits(Controller controller, CgroupVersion version, int dirfd,
                   const CgroupLimits& limits, bool fresh) {
  if (fresh && !NeedsController(controller, limits)) return OkStatus();
  bool v1 = version == CgroupVersion::kV1;
  switch (controller) {
    case Controller::kMemory:
      return v1 ? ApplyMemoryV1(dirfd, limits.memory_bytes)
                : ApplyMemoryV2(dirfd, limits.memory_bytes);
    case Controller::kPids:
      return ApplyPids(dirfd, limits.pids);
    case Controller::kCpu:
      break;
  }
  return v1 ? ApplyCpuV1(dirfd, limits, fresh) : ApplyCpuV2(dirfd, limits, fresh);
}

Status ReadUsage(Controller controller, CgroupVersion version, int dirfd, CgroupUsage& usage) {
  switch (controller) {
    case Controller::kMemory:
      return version == CgroupVersion::kV1 ? ReadMemoryV1(dirfd, usage)
                                           : ReadMemoryV2(dirfd, usage);
    case Controller::kPids:
      return ReadPids(dirfd, usage);
    case Controller::kCpu:
      break;
  }
  return ReadThrottling(version, dirfd, usage);
}

Result<uint64_t> ReadUnifiedCpuNanos(int dirfd) {
  ESKER_ASSIGN_OR_RETURN(std::string stat, ReadCgroupFile(dirfd, "cpu.stat"));
  return FindKey(stat, "usage_usec") * 1000;
}

Result<std::string> ReadCgroupFile(int dirfd, const char* name) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFileAt(dirfd, name, O_RDONLY));
  std::string out(4096, '\0');
  ESKER_ASSIGN_OR_RETURN(size_t size, ReadFull(fd.get(), out.data(), out.size()));
  out.resize(size);
  return out;
}

Result<uint64_t> ReadCgroupNumber(int dirfd, const char* name) {
  ESKER_ASSIGN_OR_RETURN(std::string text, ReadCgroupFile(dirfd, name));
  if (text.starts_with("max")) return UINT64_MAX;
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return InternalError(std::string(name) + " is not a number: " + text);
  return value;
}

uint64_t FindKey(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.size() <= key.size() || !line.starts_with(key) || line[key.size()] != ' ') continue;
    uint64_t value = 0;
    std::from_chars(line.data() + key.size() + 1, line.data() + line.size(), value);
    return value;
  }
  return 0;
}

uint32_t WeightFromShares(uint32_t shares) {
  if (shares == 0) return 100;
  uint64_t bounded = std::clamp<uint64_t>(shares, 2, 262'144);
  return static_cast<uint32_t>(1 + (bounded - 2) * 9'999 / 262'142);
}

Result<uint64_t> ReadOomKills(CgroupVersion version, int dirfd) {
  bool v1 = version == CgroupVersion::kV1;
  ESKER_ASSIGN_OR_RETURN(std::string text,
                         ReadCgroupFile(dirfd, v1 ? "memory.oom_control" : "memory.events"));
  return FindKey(text, "oom_kill");
}

}  // namespace esker
