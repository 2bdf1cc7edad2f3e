#include "confine.h"

#include <grp.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace esker {
namespace {

constexpr uint64_t Bit(int capability) { return uint64_t{1} << capability; }

Status DropBoundingSet() {
  for (int capability = 0; capability < 64; ++capability) {
    if (ContainerCapabilities() & Bit(capability)) continue;
    // EINVAL: beyond the last one that this kernel knows.
    if (::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0) {
      if (errno == EINVAL) break;
      return ErrnoError("drop a capability from the bounding set");
    }
  }
  if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 && errno != EINVAL) {
    return ErrnoError("clear ambient capabilities");
  }
  return OkStatus();
}

Status SetCapabilities(uint64_t wanted) {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  for (int word = 0; word < 2; ++word) {
    data[word].permitted = data[word].effective = static_cast<uint32_t>(wanted >> (32 * word));
  }
  if (::syscall(SYS_capset, &header, data) != 0) return ErrnoError("set capabilities");
  return OkStatus();
}

Status InstallFilter(const SystemCallFilter& filter) {
  if (filter.count == 0) return OkStatus();
  sock_fprog program = {filter.count, const_cast<sock_filter*>(filter.instructions)};
  if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0) {
    return ErrnoError("install the system call filter");
  }
  return OkStatus();
}

}  // namespace

uint64_t ContainerCapabilities() {
  return Bit(CAP_CHOWN) | Bit(CAP_DAC_OVERRIDE) | Bit(CAP_FOWNER) | Bit(CAP_FSETID) |
         Bit(CAP_KILL) | Bit(CAP_SETGID) | Bit(CAP_SETUID) | Bit(CAP_SETPCAP) |
         Bit(CAP_NET_BIND_SERVICE) | Bit(CAP_NET_RAW) | Bit(CAP_SYS_CHROOT) | Bit(CAP_SETFCAP) |
         Bit(CAP_AUDIT_WRITE);
}

void ResetSignals() {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &action, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

Status Confine(const Account& account, const SystemCallFilter& filter) {
  // The bounding set first: dropping from it needs CAP_SETPCAP. Identity last: setresuid away from
  // 0 clears what is left, and setgroups needs CAP_SETGID.
  ESKER_RETURN_IF_ERROR(DropBoundingSet());
  ESKER_RETURN_IF_ERROR(InstallFilter(filter));
  if (::setgroups(account.groups.size(), account.groups.data()) != 0) {
    return ErrnoError("set supplementary groups");
  }
  if (::setresgid(account.gid, account.gid, account.gid) != 0) {
    return ErrnoError("become group " + std::to_string(account.gid));
  }
  ESKER_RETURN_IF_ERROR(SetCapabilities(ContainerCapabilities()));
  if (::setresuid(account.uid, account.uid, account.uid) != 0) {
    return ErrnoError("become user " + std::to_string(account.uid));
  }
  return OkStatus();
}

}  // namespace esker
