#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/id.h"
#include "base/io.h"
#include "base/scope_guard.h"
#include "controllers.h"
#include "executor/cgroup.h"
#include "mounts.h"
#include "unified.h"

namespace esker {
namespace {

constexpr std::array kAllControllers = {Controller::kMemory, Controller::kPids, Controller::kCpu};

// A node's directory in one v1 hierarchy. Co-mounted controllers share one.
struct Hierarchy {
  std::string mount;
  UniqueFd mount_fd;
  UniqueFd node_fd;  // <mount>/<name>
};

// Where a controller is found. `hierarchy` counts in hierarchies_; -1: in the cgroup2 tree.
struct Home {
  Controller controller;
  CgroupVersion version;
  int hierarchy = -1;
};

// EEXIST is fine: after a restart everything is adopted. Says whether it is new.
Result<bool> MakeDirectory(int dirfd, const std::string& name) {
  if (::mkdirat(dirfd, name.c_str(), 0755) == 0) return true;
  if (errno == EEXIST) return false;
  return ErrnoError("make cgroup " + name);
}

Result<UniqueFd> OpenDirectory(int dirfd, const std::string& name) {
  return OpenFileAt(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

class CgroupRootImpl : public CgroupRoot {
 public:
  explicit CgroupRootImpl(std::string name) : name_(std::move(name)) {}

  Status Init(const CgroupMounts& mounts) {
    unified_.mount = mounts.unified;
    ESKER_RETURN_IF_ERROR(OpenHierarchy(unified_));
    for (Controller controller : kAllControllers) {
      std::string key(ControllerName(controller));
      if (auto found = mounts.v1.find(key); found != mounts.v1.end()) {
        ESKER_RETURN_IF_ERROR(AddV1(controller, found->second));
      } else if (EnableUnified(key)) {
        homes_.push_back({controller, CgroupVersion::kV2, -1});
      }
    }
    return OkStatus();
  }

  bool unified_controllers() const override { return hierarchies_.empty(); }

  Status Create(const std::string& id, const CgroupLimits& limits, uint32_t owner_uid,
                uint32_t owner_gid) override {
    ESKER_RETURN_IF_ERROR(CheckIdentifier("cgroup", id));
    ESKER_RETURN_IF_ERROR(CheckAvailable(limits));
    ESKER_ASSIGN_OR_RETURN(bool fresh, MakeDirectory(unified_.node_fd.get(), id));
    ScopeGuard undo([&] {
      if (fresh) (void)Remove(id);  // best effort; the caller gets the first error
    });
    ESKER_RETURN_IF_ERROR(Delegate(id, owner_uid, owner_gid));
    for (Hierarchy& hierarchy : hierarchies_) {
      ESKER_RETURN_IF_ERROR(
          MakeDirectory(hierarchy.node_fd.get(), id).status().Wrap(hierarchy.mount));
    }
    ESKER_RETURN_IF_ERROR(Apply(id, limits, fresh));
    undo.Dismiss();
    return OkStatus();
  }

  Result<CgroupEntryFds> OpenEntry(const std::string& id) override {
    ESKER_RETURN_IF_ERROR(CheckIdentifier("cgroup", id));
    CgroupEntryFds out;
    for (Hierarchy& hierarchy : hierarchies_) {
      ESKER_ASSIGN_OR_RETURN(UniqueFd tasks,
                             OpenFileAt(hierarchy.node_fd.get(), id + "/tasks", O_WRONLY));
      out.tasks.push_back(std::move(tasks));
    }
    ESKER_ASSIGN_OR_RETURN(out.unified, OpenUnified(id));
    return out;
  }

  Status SetLimits(const std::string& id, const CgroupLimits& limits) override {
    ESKER_RETURN_IF_ERROR(CheckIdentifier("cgroup", id));
    ESKER_RETURN_IF_ERROR(CheckAvailable(limits));
    return Apply(id, limits, /*fresh=*/false);
  }

  Status Freeze(const std::string& id, int timeout_ms) override {
    ESKER_ASSIGN_OR_RETURN(UniqueFd dir, OpenUnified(id));
    return FreezeCgroup(dir.get(), timeout_ms).Wrap("freeze cgroup " + id);
  }

  Status Thaw(const std::string& id) override {
    ESKER_ASSIGN_OR_RETURN(UniqueFd dir, OpenUnified(id));
    return ThawCgroup(dir.get()).Wrap("thaw cgroup " + id);
  }

  Status KillAll(const std::string& id, int timeout_ms, int last) override {
    ESKER_ASSIGN_OR_RETURN(UniqueFd dir, OpenUnified(id));
    return KillCgroup(dir.get(), timeout_ms, last).Wrap("kill cgroup " + id);
  }

  Result<CgroupUsage> GetUsage(const std::string& id) override {
    CgroupUsage usage;
    ESKER_ASSIGN_OR_RETURN(UniqueFd unified, OpenUnified(id));
    ESKER_ASSIGN_OR_RETURN(usage.cpu_nanos, ReadUnifiedCpuNanos(unified.get()));
    for (const Home& home : homes_) {
      ESKER_ASSIGN_OR_RETURN(UniqueFd dir, OpenHome(home, id));
      ESKER_RETURN_IF_ERROR(ReadUsage(home.controller, home.version, dir.get(), usage)
                                .Wrap("read usage of cgroup " + id));
    }
    return usage;
  }

  Result<uint64_t> CountOomKills(const std::string& id) override {
    for (const Home& home : homes_) {
      if (home.controller != Controller::kMemory) continue;
      ESKER_ASSIGN_OR_RETURN(UniqueFd dir, OpenHome(home, id));
      return ReadOomKills(home.version, dir.get());
    }
    return 0;  // without a memory controller there is no limit that could kill
  }

  Result<uint64_t> ReclaimMemory(const std::string& id) override {
    ESKER_RETURN_IF_ERROR(CheckIdentifier("cgroup", id));
    for (const Home& home : homes_) {
      if (home.controller != Controller::kMemory) continue;
      bool v1 = home.version == CgroupVersion::kV1;
      const char* usage_file = v1 ? "memory.usage_in_bytes" : "memory.current";
      ESKER_ASSIGN_OR_RETURN(UniqueFd dir, OpenHome(home, id));
      ESKER_ASSIGN_OR_RETURN(uint64_t before, ReadCgroupNumber(dir.get(), usage_file));
      if (before == 0) return 0;
      Status status = v1 ? WriteStringToFileAt(dir.get(), "memory.force_empty", "0")
                         : WriteStringToFileAt(dir.get(), "memory.reclaim", std::to_string(before));
      // EAGAIN: less than asked for could be reclaimed, which is what "as much as there is" means.
      if (!status.ok() && status.error_number() != EAGAIN && status.error_number() != EINTR) {
        return std::move(status).Wrap("reclaim memory of cgroup " + id);
      }
      ESKER_ASSIGN_OR_RETURN(uint64_t after, ReadCgroupNumber(dir.get(), usage_file));
      return before - std::min(before, after);
    }
    return UnimplementedError("reclaim memory of cgroup " + id +
                              ": this machine has no memory controller");
  }

  Status Remove(const std::string& id) override {
    ESKER_RETURN_IF_ERROR(CheckIdentifier("cgroup", id));
    // The cgroup2 directory goes last: while it exists, List still names a half-removed sandbox.
    for (Hierarchy& hierarchy : hierarchies_) {
      ESKER_RETURN_IF_ERROR(RemoveCgroupTree(hierarchy.node_fd.get(), id).Wrap(hierarchy.mount));
    }
    return RemoveCgroupTree(unified_.node_fd.get(), id).Wrap(unified_.mount);
  }

  Result<std::vector<std::string>> List() override { return ListCgroups(unified_.node_fd.get()); }

  Status Close() override {
    for (Hierarchy& hierarchy : hierarchies_) {
      ESKER_RETURN_IF_ERROR(RemoveNode(hierarchy));
    }
    return RemoveNode(unified_);
  }

 private:
  Status OpenHierarchy(Hierarchy& hierarchy) {
    ESKER_ASSIGN_OR_RETURN(hierarchy.mount_fd, OpenFile(hierarchy.mount, O_RDONLY | O_DIRECTORY));
    ESKER_RETURN_IF_ERROR(
        MakeDirectory(hierarchy.mount_fd.get(), name_).status().Wrap(hierarchy.mount));
    ESKER_ASSIGN_OR_RETURN(hierarchy.node_fd, OpenDirectory(hierarchy.mount_fd.get(), name_));
    return OkStatus();
  }

  Status AddV1(Controller controller, const std::string& mount) {
    auto same = std::find_if(hierarchies_.begin(), hierarchies_.end(),
                             [&](const Hierarchy& h) { return h.mount == mount; });
    if (same == hierarchies_.end()) {
      Hierarchy hierarchy;
      hierarchy.mount = mount;
      ESKER_RETURN_IF_ERROR(OpenHierarchy(hierarchy));
      same = hierarchies_.insert(hierarchies_.end(), std::move(hierarchy));
    }
    homes_.push_back(
        {controller, CgroupVersion::kV1, static_cast<int>(same - hierarchies_.begin())});
    return OkStatus();
  }

  // Hands the controller down to the sandboxes. False when the kernel has not got it here; a limit
  // that needs it is refused later, by name.
  bool EnableUnified(const std::string& controller) {
    std::string text = "+" + controller;
    return WriteStringToFileAt(unified_.mount_fd.get(), "cgroup.subtree_control", text).ok() &&
           WriteStringToFileAt(unified_.node_fd.get(), "cgroup.subtree_control", text).ok();
  }

  Status CheckAvailable(const CgroupLimits& limits) const {
    for (Controller controller : kAllControllers) {
      bool found = std::any_of(homes_.begin(), homes_.end(),
                               [&](const Home& home) { return home.controller == controller; });
      if (!found && NeedsController(controller, limits)) {
        return UnimplementedError("set limits: this machine has no " +
                                  std::string(ControllerName(controller)) +
                                  " cgroup controller; mount it or ask for no such limit");
      }
    }
    return OkStatus();
  }

  // cgroups(7), "Delegation": the directory and these files, and nothing that holds a limit.
  Status Delegate(const std::string& id, uint32_t uid, uint32_t gid) {
    for (const char* file : {"", "/cgroup.procs", "/cgroup.subtree_control", "/cgroup.threads"}) {
      if (::fchownat(unified_.node_fd.get(), (id + file).c_str(), uid, gid, AT_SYMLINK_NOFOLLOW)) {
        return ErrnoError("delegate cgroup " + id + file);
      }
    }
    return OkStatus();
  }

  Status Apply(const std::string& id, const CgroupLimits& limits, bool fresh) {
    for (const Home& home : homes_) {
      if (fresh && !NeedsController(home.controller, limits)) continue;
      ESKER_ASSIGN_OR_RETURN(UniqueFd dir, OpenHome(home, id));
      ESKER_RETURN_IF_ERROR(ApplyLimits(home.controller, home.version, dir.get(), limits, fresh)
                                .Wrap("set limits of cgroup " + id));
    }
    return OkStatus();
  }

  Result<UniqueFd> OpenUnified(const std::string& id) {
    ESKER_RETURN_IF_ERROR(CheckIdentifier("cgroup", id));
    Result<UniqueFd> dir = OpenDirectory(unified_.node_fd.get(), id);
    if (!dir.ok()) return std::move(dir).status().Wrap("cgroup " + name_);
    return dir;
  }

  Result<UniqueFd> OpenHome(const Home& home, const std::string& id) {
    if (home.hierarchy < 0) return OpenUnified(id);
    return OpenDirectory(hierarchies_[static_cast<size_t>(home.hierarchy)].node_fd.get(), id);
  }

  Status RemoveNode(Hierarchy& hierarchy) {
    if (::unlinkat(hierarchy.mount_fd.get(), name_.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) {
      return OkStatus();
    }
    return ErrnoError("remove cgroup " + hierarchy.mount + "/" + name_);
  }

  // All fixed after Init; the kernel serialises the rest, which makes this thread-safe.
  const std::string name_;
  Hierarchy unified_;
  std::vector<Hierarchy> hierarchies_;
  std::vector<Home> homes_;
};

}  // namespace

Result<std::unique_ptr<CgroupRoot>> CgroupRoot::Open(const std::string& name) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("cgroup root", name));
  ESKER_ASSIGN_OR_RETURN(std::string mountinfo, ReadFileToString("/proc/self/mountinfo"));
  CgroupMounts mounts = ParseCgroupMounts(mountinfo);
  if (mounts.unified.empty()) {
    return UnimplementedError(
        "no cgroup2 file system is mounted; killing and freezing sandboxes need one "
        "(mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified)");
  }
  auto root = std::make_unique<CgroupRootImpl>(name);
  ESKER_RETURN_IF_ERROR(root->Init(mounts).Wrap("open cgroups of " + name));
  return std::unique_ptr<CgroupRoot>(std::move(root));
}

}  // namespace esker
