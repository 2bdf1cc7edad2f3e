// Probes of what makes processes and keeps them apart.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/io.h"
#include "base/process.h"
#include "probing.h"

namespace esker::features {

Outcome ProbeOpenat2(Probing& probing) {
  Result<UniqueFd> directory = OpenFile(probing.options().directory, O_PATH | O_DIRECTORY);
  if (!directory.ok()) return std::move(directory).status();
  Result<UniqueFd> beneath = OpenBeneath(directory->get(), "fuse", O_PATH | O_DIRECTORY);
  if (!beneath.ok()) return std::move(beneath).status().Wrap("openat2");
  return "names are resolved below a directory";
}

Outcome ProbePidfd(Probing&) {
  Result<Process> self = Process::Open(getpid());
  if (!self.ok()) return self.status().Wrap("pidfd_open");
  if (syscall(SYS_pidfd_send_signal, self->pidfd(), 0, nullptr, 0) != 0) {
    return ErrnoError("pidfd_send_signal");
  }
  return "processes are named by descriptors";
}

Outcome ProbePidfdIdentity(Probing&) {
  Result<Process> self = Process::Open(getpid()), first = Process::Open(1);
  if (self.ok() && first.ok()) {
    Result<ProcessIdentity> a = self->identity(), b = first->identity();
    if (a.ok() && b.ok() && (a->pidfd_inode != b->pidfd_inode || getpid() == 1)) {
      return "pidfds name processes for good";
    }
  }
  return Outcome::FallsBack(
      "all pidfds have one inode (own inodes came with Linux 6.9): a process whose pid was reused "
      "while the server was down is told apart by its cgroup only");
}

Outcome ProbeSealedMemory(Probing&) {
  UniqueFd file(memfd_create("esker-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return ErrnoError("memfd_create");
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return ErrnoError("seal a memory file");
  }
  // No descriptor has that number.
  if (close_range(~0u, ~0u, 0) != 0) return ErrnoError("close_range");
  return "sealed memory files";
}

Outcome ProbeCgroups(Probing& probing) {
  Result<CgroupRoot*> root = probing.Cgroups();
  if (!root.ok()) return std::move(root).status();
  Status frozen = (*root)->Freeze("probe", 1000);
  if (frozen.ok()) frozen = (*root)->Thaw("probe");
  if (!frozen.ok()) return frozen;
  if ((*root)->unified_controllers()) return "cgroup v2: memory, pids, cpu, freeze, kill";
  return "cgroup v1 for memory, pids and cpu, the v2 tree for freeze and kill";
}

Outcome ProbeClone(Probing& probing) {
  const Rehearsal& rehearsal = probing.Rehearsed();
  if (!rehearsal.cloned.ok()) return rehearsal.cloned;
  if (const Status& joined = rehearsal[Step::kCgroups]; !joined.ok()) return joined;
  return "a process is born in its cgroup and in pid, ipc and uts namespaces";
}

Outcome ProbeUserNamespace(Probing& probing) {
  const Result<UniqueFd>& made = probing.UserNamespace();
  if (!made.ok()) return made.status();
  const Rehearsal& rehearsal = probing.Rehearsed();
  if (!rehearsal[Step::kUserNamespace].ok()) return rehearsal[Step::kUserNamespace];
  return "user namespaces with a uid range of their own";
}

Outcome ProbeMountNamespace(Probing& probing) {
  const Status& entered = probing.Rehearsed()[Step::kMountNamespace];
  if (!entered.ok()) return entered;
  return "mount and cgroup namespaces";
}

Outcome ProbeNetworkNamespace(Probing& probing) {
  const Status& entered = probing.Rehearsed()[Step::kNetworkNamespace];
  if (!entered.ok()) return entered;
  return "network namespaces";
}

Outcome ProbeSeccomp(Probing& probing) {
  const Status& installed = probing.Rehearsed()[Step::kSeccomp];
  if (!installed.ok()) return installed;
  return "a filter can be installed";
}

}  // namespace esker::features
