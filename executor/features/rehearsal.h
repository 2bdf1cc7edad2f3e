// What the keeper's child does to become a sandbox, done once in a child of ours.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace esker::features {

enum class Step : uint8_t {
  kCgroups,
  kMountNamespace,
  kFuse,
  kNetworkNamespace,
  kFileSystems,
  kUserNamespace,
  kSeccomp,
  kCount
};

struct RehearsalPlan {
  std::string fuse_directory;  // a mount point
  int user_ns = -1;            // -1: that step is not done
  int unified_cgroup = -1;     // O_DIRECTORY; the child is born in it
  std::vector<int> v1_tasks;   // "tasks" files that the child joins
};

struct Rehearsal {
  Status cloned;  // clone3 into new pid, ipc and uts namespaces
  // Of each step: OK, or what it failed with. Steps do not depend on each other.
  std::array<Status, static_cast<size_t>(Step::kCount)> steps;
  const Status& operator[](Step step) const { return steps[static_cast<size_t>(step)]; }
};

// Needs root, and a process with one thread.
Rehearsal Rehearse(const RehearsalPlan& plan);

}  // namespace esker::features
