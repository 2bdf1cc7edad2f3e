// Cgroups of sandboxes: limits, freezing, killing, usage. One interface over cgroup v1 controllers
// (with the hybrid's cgroup2 tree for kill and events) and pure cgroup v2.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker {

struct CgroupLimits {
  uint64_t memory_bytes = 0;  // 0: no limit
  uint64_t pids = 0;
  double cpus = 0;          // 1.5 = one and a half cores; 0: no limit
  uint32_t cpu_shares = 0;  // weight; 0: default
};

struct CgroupUsage {
  uint64_t memory_bytes = 0, memory_peak_bytes = 0, memory_limit_bytes = 0;
  uint64_t oom_kills = 0;
  uint64_t pids = 0;
  uint64_t pids_limit_hits = 0;
  uint64_t cpu_nanos = 0;
  uint64_t cpu_throttled_nanos = 0;
};

// What a child writes or names to be born inside; valid as long as the SandboxCgroup's files exist.
struct CgroupEntryFds {
  std::vector<UniqueFd> tasks;  // v1: open O_WRONLY "tasks" files; the child writes "0" to each
  UniqueFd unified;  // O_RDONLY|O_DIRECTORY of the cgroup2 directory, for CLONE_INTO_CGROUP
};

// The tree below which all sandboxes of one node live, e.g. "esker-<node id>" at every mounted
// hierarchy. Thread-safe.
class CgroupRoot {
 public:
  // Finds what is mounted (v1 controllers, cgroup2) and makes the node's directories.
  // UNIMPLEMENTED naming what is missing if there is no cgroup2 tree at all.
  static Result<std::unique_ptr<CgroupRoot>> Open(const std::string& name);
  virtual ~CgroupRoot() = default;

  virtual bool unified_controllers() const = 0;  // true: pure v2; false: v1 controllers

  // Makes (or adopts) the sandbox's cgroup and sets its limits. The cgroup2 directory is delegated
  // to `owner_uid`/`owner_gid` (its cgroup.procs, cgroup.subtree_control and itself are chowned) so
  // that init can make a child cgroup per command and kill it with the node down.
  virtual Status Create(const std::string& id, const CgroupLimits& limits, uint32_t owner_uid,
                        uint32_t owner_gid) = 0;
  virtual Result<CgroupEntryFds> OpenEntry(const std::string& id) = 0;
  virtual Status SetLimits(const std::string& id, const CgroupLimits& limits) = 0;
  // Freezes or thaws everything in it; waits until it holds, DEADLINE_EXCEEDED else (and thaws).
  virtual Status Freeze(const std::string& id, int timeout_ms) = 0;
  virtual Status Thaw(const std::string& id) = 0;
  // SIGKILLs every process in it and waits until it is empty. `last` is a pidfd of the process
  // whose end comes last, if the caller has one: it tells at once, cgroups up to 10 ms later.
  virtual Status KillAll(const std::string& id, int timeout_ms, int last = -1) = 0;
  virtual Result<CgroupUsage> GetUsage(const std::string& id) = 0;
  // GetUsage().oom_kills alone, at the price of one file: asked for at every command's end.
  virtual Result<uint64_t> CountOomKills(const std::string& id) = 0;
  // As much memory as the kernel gives back (memory.force_empty / memory.reclaim); bytes freed.
  virtual Result<uint64_t> ReclaimMemory(const std::string& id) = 0;
  // Removes it and all below; missing is OK. FAILED_PRECONDITION (EBUSY) while processes live.
  virtual Status Remove(const std::string& id) = 0;
  virtual Result<std::vector<std::string>> List() = 0;
  // Removes the node's own directories when they are empty.
  virtual Status Close() = 0;
};

}  // namespace esker
