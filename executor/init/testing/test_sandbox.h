// A small sandbox for testing init by itself: a busybox root on tmpfs in namespaces of its own,
// built in the keeper's order (mounts belong to the host, init to a child user namespace).
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "base/status.h"
#include "base/temp_dir.h"
#include "base/unique_fd.h"
#include "executor/cgroup.h"

namespace esker {

class TestSandbox {
 public:
  struct Options {
    std::string init_binary;
    CgroupLimits limits;
    uint64_t tmpfs_bytes = 64 << 20;
    bool with_filter = true;
    bool with_cgroup = true;  // false: init has to refuse
  };
  // Why a test cannot run here, or "".
  static std::string WhyNot();
  static Result<std::unique_ptr<TestSandbox>> Start(const Options& options);
  ~TestSandbox();
  // Kills it and checks that nothing is left.
  Status Stop();

  const std::string& socket_path() const { return socket_path_; }
  pid_t init_pid() const { return init_pid_; }  // as the host sees it
  CgroupRoot& cgroups() { return *cgroups_; }
  static constexpr const char* kId = "sb";
  // Raw wait status once init has ended by itself.
  Result<int> WaitInit();

  // Looking at init from the host.
  size_t CountInitFds() const;
  size_t CountChildren() const;   // zombies included
  size_t CountProcesses() const;  // in the whole sandbox with init, without zombies
  size_t CountCommandCgroups() const;
  // Memory that init has for itself. The pages of its program do not count: they lie in a memory
  // file that all sandboxes of a node share.
  uint64_t AnonymousBytes() const;

 private:
  TestSandbox() = default;
  Status Launch(const Options& options, int filter);

  std::unique_ptr<TempDir> directory_;
  std::string name_, socket_path_;
  std::unique_ptr<CgroupRoot> cgroups_;
  UniqueFd listen_;
  UniqueFd cgroup_;
  pid_t init_pid_ = -1;
};

}  // namespace esker
