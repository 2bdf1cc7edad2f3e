// One probing of the machine: what its probes share, and their clean-up.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "executor/cgroup.h"
#include "executor/host_features.h"
#include "imagefs/layer_mount.h"
#include "rehearsal.h"

namespace esker::features {

// What a probe saw: an error when the feature is missing; else it works, or falls back.
struct Outcome {
  Status status;
  std::string note;
  bool falls_back = false;

  Outcome(Status failed) : status(std::move(failed)) {}
  Outcome(std::string works) : note(std::move(works)) {}
  Outcome(const char* works) : note(works) {}
  static Outcome FallsBack(std::string note) {
    Outcome outcome(std::move(note));
    outcome.falls_back = true;
    return outcome;
  }
};

class Probing {
 public:
  explicit Probing(const HostProbe& probe) : probe_(probe) {}

  // Makes the directory, and removes what an interrupted probing left.
  Status Begin();
  // Removes all. The first failure is told, the rest is done nevertheless.
  Status End();

  const HostProbe& options() const { return probe_; }

  // Each is made once, by the first probe that needs it.
  Result<CgroupRoot*> Cgroups();
  const Result<UniqueFd>& UserNamespace();
  const Result<LayerMount>& Layer();
  const Rehearsal& Rehearsed();

 private:
  Status RemoveCgroups();
  Status OpenCgroups();

  HostProbe probe_;
  Status cgroups_opened_;
  std::unique_ptr<CgroupRoot> cgroups_;
  bool cgroups_tried_ = false;
  std::optional<Result<UniqueFd>> user_namespace_;
  std::optional<Result<LayerMount>> layer_;
  std::optional<Rehearsal> rehearsal_;
};

// A detached, empty tmpfs.
Result<UniqueFd> NewTmpfs();

// The probes, one per line of the list in host_features.cc.
Outcome ProbeOpenat2(Probing& probing);
Outcome ProbePidfd(Probing& probing);
Outcome ProbePidfdIdentity(Probing& probing);
Outcome ProbeSealedMemory(Probing& probing);
Outcome ProbeCgroups(Probing& probing);
Outcome ProbeClone(Probing& probing);
Outcome ProbeUserNamespace(Probing& probing);
Outcome ProbeMountNamespace(Probing& probing);
Outcome ProbeNetworkNamespace(Probing& probing);
Outcome ProbeSeccomp(Probing& probing);
Outcome ProbeMountApi(Probing& probing);
Outcome ProbeMountAttributes(Probing& probing);
Outcome ProbeDetachedMounts(Probing& probing);
Outcome ProbeFileSystems(Probing& probing);
Outcome ProbeErofs(Probing& probing);
Outcome ProbeIdMap(Probing& probing);
Outcome ProbeFuse(Probing& probing);
Outcome ProbeOverlay(Probing& probing);
Outcome ProbeBtrfs(Probing& probing);

}  // namespace esker::features
