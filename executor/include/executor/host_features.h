// What a node needs of its machine, each thing proved by doing it: the one list behind `esker
// doctor` and the check before `esker serve` starts anything.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace esker {

enum class Verdict {
  kWorks,
  kFallsBack,  // the node works, at a price that the detail tells
  kMissing,
  kUntried,  // what it builds upon is missing
};

struct Finding {
  std::string name;
  Verdict verdict = Verdict::kWorks;
  std::string detail;  // what was seen; what needs it and what brings it when it is not there
};

struct HostProbe {
  // Made for the probing and removed after it; what an interrupted one left is removed first. On
  // the file system that holds, or will hold, the node's data.
  std::string directory;
  // Name of a cgroup tree; the same holds for it.
  std::string cgroup;
  // Uppers are to be btrfs, or are already (UpperStore::NeedsBtrfs).
  bool needs_btrfs = false;
};

// All features in the order in which they build upon each other. Takes some milliseconds. Needs
// root. Forks: call it before there are threads. Leaves nothing.
std::vector<Finding> ProbeHost(const HostProbe& probe);

// FAILED_PRECONDITION, if something is missing: it names the first missing feature, what failed and
// how, what needs it and which kernel brings it, then the names of the others. Else the findings.
Result<std::vector<Finding>> RequireHost(const HostProbe& probe);

}  // namespace esker
