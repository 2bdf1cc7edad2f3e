#include "executor/host_features.h"

#include <string_view>

#include "probing.h"

namespace esker {
namespace {

using namespace features;

struct Feature {
  std::string_view name;
  std::string_view after;   // the feature without which trying this one tells nothing new
  std::string_view needed;  // by what
  std::string_view brings;  // which kernel or setting
  Outcome (*probe)(Probing&);
};

constexpr std::string_view kMountApi = "mount API", kClone = "clone3";

// The one list. Each line stands behind those that it builds upon.
constexpr Feature kFeatures[] = {
    {"openat2", "", "names inside sandboxes and stores are resolved with it", "Linux 5.6",
     ProbeOpenat2},
    {"pidfd", "", "the node names, signals and awaits processes by descriptor", "Linux 5.4",
     ProbePidfd},
    {"process identity", "pidfd", "a restarted node knows its processes again", "Linux 6.9",
     ProbePidfdIdentity},
    {"sealed memory files", "", "init runs from one", "Linux 5.9 with CONFIG_MEMFD_CREATE",
     ProbeSealedMemory},
    {"cgroups", "", "limits, pausing and killing of sandboxes",
     "a mounted cgroup2 tree that the node may write to, and memory, pids and cpu controllers in "
     "it "
     "or in mounted v1 trees (a service needs Delegate=yes)",
     ProbeCgroups},
    {kClone, "", "the keeper starts every sandbox with it",
     "Linux 5.7 with CONFIG_PID_NS, CONFIG_IPC_NS and CONFIG_UTS_NS", ProbeClone},
    {"mount namespaces", kClone, "every sandbox has mount and cgroup namespaces of its own",
     "Linux 4.6 with CONFIG_CGROUPS, and the right to mount (CAP_SYS_ADMIN)", ProbeMountNamespace},
    {"network namespaces", kClone, "every sandbox has a network of its own",
     "CONFIG_NET_NS and user.max_net_namespaces above 0", ProbeNetworkNamespace},
    {"user namespaces", kClone, "every sandbox has a uid range of its own",
     "CONFIG_USER_NS and user.max_user_namespaces above 0", ProbeUserNamespace},
    {"seccomp", kClone, "every program in a sandbox runs under a filter of system calls",
     "CONFIG_SECCOMP_FILTER", ProbeSeccomp},
    {kMountApi, "", "the keeper makes every mount by descriptor",
     "Linux 5.2 (fsopen, fsconfig, fsmount)", ProbeMountApi},
    {"mount_setattr", kMountApi, "templates of sandboxes are made read-only with it", "Linux 5.12",
     ProbeMountAttributes},
    {"detached mounts", kMountApi,
     "roots are built from clones of mounts that are attached nowhere", "Linux 6.15",
     ProbeDetachedMounts},
    {"small file systems", kMountApi, "every sandbox has its own /proc, /dev/pts and /dev/mqueue",
     "CONFIG_PROC_FS, CONFIG_UNIX98_PTYS and CONFIG_POSIX_MQUEUE", ProbeFileSystems},
    {"layers (EROFS)", kMountApi, "images are mounted as EROFS",
     "Linux 6.12 with CONFIG_EROFS_FS_BACKED_BY_FILE, or loop devices (modprobe erofs loop)",
     ProbeErofs},
    {"id-mapped mounts", "layers (EROFS)", "layers and uppers are shifted to a sandbox's uid range",
     "Linux 6.3 (EROFS 5.19, tmpfs 6.3)", ProbeIdMap},
    {"lazy data (FUSE)", "mount namespaces", "image data is read through the blob server",
     "/dev/fuse and CONFIG_FUSE_FS (modprobe fuse)", ProbeFuse},
    {"roots (overlayfs)", kMountApi, "a sandbox's root is an overlay of its layers",
     "Linux 6.13 with CONFIG_OVERLAY_FS (modprobe overlay)", ProbeOverlay},
    {"btrfs", kMountApi, "the volumes of sandboxes lie in a btrfs pool",
     "CONFIG_BTRFS_FS and loop devices (modprobe btrfs loop), or node.upper = \"plain\" on a new "
     "data directory",
     ProbeBtrfs},
};

Finding Describe(const Feature& feature, const Outcome& outcome) {
  Finding finding{std::string(feature.name), Verdict::kWorks, outcome.note};
  if (outcome.falls_back) finding.verdict = Verdict::kFallsBack;
  if (outcome.status.ok()) return finding;
  finding.verdict = Verdict::kMissing;
  finding.detail = outcome.status.message() + "; " + std::string(feature.needed) + "; it needs " +
                   std::string(feature.brings);
  return finding;
}

bool Lacks(const std::vector<Finding>& findings, std::string_view name) {
  for (const Finding& finding : findings) {
    if (finding.name != name) continue;
    return finding.verdict == Verdict::kMissing || finding.verdict == Verdict::kUntried;
  }
  return false;
}

}  // namespace

std::vector<Finding> ProbeHost(const HostProbe& probe) {
  std::vector<Finding> findings;
  Probing probing(probe);
  if (Status begun = probing.Begin(); !begun.ok()) {
    findings.push_back({"data directory", Verdict::kMissing, begun.message()});
    return findings;
  }
  for (const Feature& feature : kFeatures) {
    if (Lacks(findings, feature.after)) {
      findings.push_back({std::string(feature.name), Verdict::kUntried,
                          "it builds upon " + std::string(feature.after)});
    } else {
      findings.push_back(Describe(feature, feature.probe(probing)));
    }
  }
  if (Status ended = probing.End(); !ended.ok()) {
    findings.push_back({"clean-up", Verdict::kMissing, ended.message()});
  }
  return findings;
}

Result<std::vector<Finding>> RequireHost(const HostProbe& probe) {
  std::vector<Finding> findings = ProbeHost(probe);
  std::string first, others;
  for (const Finding& finding : findings) {
    if (finding.verdict != Verdict::kMissing) continue;
    if (first.empty()) {
      first = finding.name + ": " + finding.detail;
    } else {
      others += (others.empty() ? "" : ", ") + finding.name;
    }
  }
  if (first.empty()) return findings;
  if (!others.empty()) first += "; missing too: " + others;
  return FailedPreconditionError("this machine lacks " + first +
                                 "; nothing was started; `esker doctor` tries each feature");
}

}  // namespace esker
