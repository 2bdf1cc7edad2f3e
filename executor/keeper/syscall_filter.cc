#include "syscall_filter.h"

#include <asm/unistd.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>

#include "base/io.h"

namespace esker::keeper {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "the syscall table of this architecture has not been looked at"
#endif

enum class Rule : uint8_t {
  kAllow,
  kEperm,                   // administers the machine or its namespaces
  kEnosys,                  // a facility that sandboxes do not have
  kNoNewNamespaces,         // clone: flags in argument 0
  kNoNewNamespacesUnshare,  // unshare: also CLONE_NEWTIME, which for clone is a signal number
  kIoctl,
  kSocket,
  kPersonality,
  kNotInit,        // acts on the process in argument 0; PID 1 shares the sandbox root's uid
  kNotInitSecond,  // the same, argument 1
};

constexpr uint32_t kNamespaceFlags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET |
                                     CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
constexpr uint32_t kNewTime = 0x80;

// The first number that is refused unless listed: everything up to fchmodat2 (Linux 6.6) was looked
// at. Numbers from 424 on are the same on all architectures.
constexpr uint32_t kKnownEnd = 453;

const std::map<uint32_t, Rule>& Exceptions() {
  static const std::map<uint32_t, Rule> rules = {
    // Mounts and roots. (chroot stays: it needs only the sandbox's own capability.)
    {__NR_mount, Rule::kEperm},
    {__NR_umount2, Rule::kEperm},
    {__NR_pivot_root, Rule::kEperm},
    {__NR_open_tree, Rule::kEperm},
    {__NR_move_mount, Rule::kEperm},
    {__NR_fsopen, Rule::kEperm},
    {__NR_fsconfig, Rule::kEperm},
    {__NR_fsmount, Rule::kEperm},
    {__NR_fspick, Rule::kEperm},
    {__NR_mount_setattr, Rule::kEperm},
    {__NR_open_by_handle_at, Rule::kEperm},  // a handle can name files outside the root
    // Namespaces. clone3 passes its flags in memory, where no filter can see them.
    {__NR_setns, Rule::kEperm},
    {__NR_unshare, Rule::kNoNewNamespacesUnshare},
    {__NR_clone, Rule::kNoNewNamespaces},
    {__NR_clone3, Rule::kEnosys},
    // The machine.
    {__NR_reboot, Rule::kEperm},
    {__NR_swapon, Rule::kEperm},
    {__NR_swapoff, Rule::kEperm},
    {__NR_syslog, Rule::kEperm},
    {__NR_acct, Rule::kEperm},
    {__NR_quotactl, Rule::kEperm},
    {__NR_quotactl_fd, Rule::kEperm},
    {__NR_settimeofday, Rule::kEperm},
    {__NR_clock_settime, Rule::kEperm},
    {__NR_init_module, Rule::kEperm},
    {__NR_finit_module, Rule::kEperm},
    {__NR_delete_module, Rule::kEperm},
    {__NR_kexec_load, Rule::kEperm},
    {__NR_kexec_file_load, Rule::kEperm},
    {__NR_vhangup, Rule::kEperm},
    {__NR_nfsservctl, Rule::kEnosys},
#if defined(__x86_64__)
    {__NR_iopl, Rule::kEperm},
    {__NR_ioperm, Rule::kEperm},
    {__NR_modify_ldt, Rule::kEnosys},  // only for 16- and 32-bit code, which is refused anyway
    {__NR_create_module, Rule::kEnosys},
    {__NR_get_kernel_syms, Rule::kEnosys},
    {__NR_query_module, Rule::kEnosys},
    {__NR_uselib, Rule::kEnosys},
    {__NR__sysctl, Rule::kEnosys},
    {__NR_sysfs, Rule::kEnosys},
    {__NR_ustat, Rule::kEnosys},
#endif
    {__NR_lookup_dcookie, Rule::kEnosys},
    // Kernel facilities with a large attack surface, or that go around this filter (io_uring).
    {__NR_bpf, Rule::kEperm},
    {__NR_perf_event_open, Rule::kEperm},
    {__NR_userfaultfd, Rule::kEnosys},
    {__NR_io_uring_setup, Rule::kEnosys},
    {__NR_io_uring_enter, Rule::kEnosys},
    {__NR_io_uring_register, Rule::kEnosys},
    {__NR_add_key, Rule::kEnosys},  // keyrings are not namespaced by uid range alone
    {__NR_request_key, Rule::kEnosys},
    {__NR_keyctl, Rule::kEnosys},
    {__NR_memfd_secret, Rule::kEnosys},
    // Looked at argument by argument.
    {__NR_ioctl, Rule::kIoctl},
    {__NR_socket, Rule::kSocket},
    {__NR_personality, Rule::kPersonality},
    // Limits, priority and affinity need only the same uid, which PID 1 has.
    {__NR_prlimit64, Rule::kNotInit},
    {__NR_sched_setparam, Rule::kNotInit},
    {__NR_sched_setscheduler, Rule::kNotInit},
    {__NR_sched_setattr, Rule::kNotInit},
    {__NR_sched_setaffinity, Rule::kNotInit},
    {__NR_setpriority, Rule::kNotInitSecond},
    {__NR_ioprio_set, Rule::kNotInitSecond},
    // Newer than kKnownEnd, and wanted: futex_wake, _wait, _requeue; mseal; the xattrat family.
    {454, Rule::kAllow},
    {455, Rule::kAllow},
    {456, Rule::kAllow},
    {462, Rule::kAllow},
    {463, Rule::kAllow},
    {464, Rule::kAllow},
    {465, Rule::kAllow},
    {466, Rule::kAllow},
  };
  return rules;
}

struct Range {
  uint32_t first;
  Rule rule;
};

std::vector<Range> Ranges() {
  std::vector<Range> ranges = {{0, Rule::kAllow}};
  auto begin = [&](uint32_t first, Rule rule) {
    if (ranges.back().first == first) ranges.pop_back();
    if (ranges.empty() || ranges.back().rule != rule) ranges.push_back({first, rule});
  };
  auto default_rule = [](uint32_t nr) { return nr < kKnownEnd ? Rule::kAllow : Rule::kEnosys; };
  bool past_known = false;
  for (auto& [nr, rule] : Exceptions()) {
    if (nr >= kKnownEnd && !past_known) {
      begin(kKnownEnd, Rule::kEnosys);
      past_known = true;
    }
    begin(nr, rule);
    begin(nr + 1, default_rule(nr + 1));
  }
  return ranges;
}

using Program = std::vector<sock_filter>;

void Statement(Program& p, uint16_t code, uint32_t k) { p.push_back({code, 0, 0, k}); }
void Jump(Program& p, uint16_t test, uint32_t k, uint8_t if_true, uint8_t if_false) {
  p.push_back({static_cast<uint16_t>(BPF_JMP | test | BPF_K), if_true, if_false, k});
}
void Load(Program& p, size_t offset) {
  Statement(p, BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
}
void Return(Program& p, uint32_t action) { Statement(p, BPF_RET | BPF_K, action); }
constexpr uint32_t Error(int error) { return SECCOMP_RET_ERRNO | static_cast<uint32_t>(error); }

// The low 32 bits of an argument: all that the kernel looks at in the calls checked here.
constexpr size_t LowWord(size_t argument) {
  return offsetof(seccomp_data, args) + argument * sizeof(uint64_t);
}
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

// `action` unless the loaded value is one of these.
void ReturnUnlessIn(Program& p, std::initializer_list<uint32_t> values, uint32_t action) {
  for (uint32_t value : values) {
    Jump(p, BPF_JEQ, value, 0, 1);
    Return(p, SECCOMP_RET_ALLOW);
  }
  Return(p, action);
}

void EmitRule(Program& p, Rule rule) {
  switch (rule) {
    case Rule::kAllow:
      return Return(p, SECCOMP_RET_ALLOW);
    case Rule::kEperm:
      return Return(p, Error(EPERM));
    case Rule::kEnosys:
      return Return(p, Error(ENOSYS));
    case Rule::kNoNewNamespaces:
    case Rule::kNoNewNamespacesUnshare:
      Load(p, LowWord(0));
      Jump(p, BPF_JSET,
           rule == Rule::kNoNewNamespaces ? kNamespaceFlags : kNamespaceFlags | kNewTime, 0, 1);
      Return(p, Error(EPERM));
      return Return(p, SECCOMP_RET_ALLOW);
    case Rule::kIoctl:  // both put input into a terminal that others read from
      Load(p, LowWord(1));
      Jump(p, BPF_JEQ, TIOCSTI, 1, 0);
      Jump(p, BPF_JEQ, TIOCLINUX, 0, 1);
      Return(p, Error(EPERM));
      return Return(p, SECCOMP_RET_ALLOW);
    case Rule::kSocket:  // no vsock (reaches the host), AF_ALG, AF_PACKET and the rarely audited
      Load(p, LowWord(0));
      return ReturnUnlessIn(p, {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK}, Error(EAFNOSUPPORT));
    case Rule::kPersonality:  // queries, plain Linux, UNAME26, and gdb's ADDR_NO_RANDOMIZE
      Load(p, LowWord(0));
      return ReturnUnlessIn(p, {0, 0xffffffff, 0x8, 0x20000, 0x20008, 0x40000}, Error(EPERM));
    case Rule::kNotInit:
    case Rule::kNotInitSecond:
      Load(p, LowWord(rule == Rule::kNotInit ? 0 : 1));
      Jump(p, BPF_JEQ, 1, 0, 1);
      Return(p, Error(EPERM));
      return Return(p, SECCOMP_RET_ALLOW);
  }
}

// A binary search over ranges[begin, end): the number is in the accumulator.
void EmitSearch(Program& p, const std::vector<Range>& ranges, size_t begin, size_t end) {
  if (end - begin == 1) return EmitRule(p, ranges[begin].rule);
  size_t middle = begin + (end - begin) / 2;
  Program low, high;
  EmitSearch(low, ranges, begin, middle);
  EmitSearch(high, ranges, middle, end);
  // Jump distances are one byte; beyond that, over a jump whose distance is a word.
  if (low.size() <= 255) {
    Jump(p, BPF_JGE, ranges[middle].first, static_cast<uint8_t>(low.size()), 0);
  } else {
    Jump(p, BPF_JGE, ranges[middle].first, 0, 1);
    Statement(p, BPF_JMP | BPF_JA, static_cast<uint32_t>(low.size()));
  }
  p.insert(p.end(), low.begin(), low.end());
  p.insert(p.end(), high.begin(), high.end());
}

}  // namespace

std::vector<sock_filter> BuildSyscallFilter() {
  Program program;
  Load(program, offsetof(seccomp_data, arch));
  Jump(program, BPF_JEQ, kArchitecture, 1, 0);
  Return(program, Error(ENOSYS));
  Load(program, offsetof(seccomp_data, nr));
  std::vector<Range> ranges = Ranges();
  EmitSearch(program, ranges, 0, ranges.size());
  return program;
}

Result<UniqueFd> MakeFilterFile(const std::vector<sock_filter>& program) {
  UniqueFd fd(memfd_create("syscall-filter", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoError("make the memory file of the syscall filter");
  ESKER_RETURN_IF_ERROR(WriteFull(fd.get(), program.data(), program.size() * sizeof(sock_filter)));
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return ErrnoError("seal the syscall filter");
  }
  return fd;
}

}  // namespace esker::keeper
