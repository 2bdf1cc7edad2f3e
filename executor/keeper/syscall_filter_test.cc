#include "syscall_filter.h"

#include <asm/unistd.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace esker::keeper {
namespace {

// What the kernel would answer, by running the program as the kernel does.
uint32_t Simulate(const std::vector<sock_filter>& program, const seccomp_data& data) {
  uint32_t a = 0;
  for (size_t pc = 0; pc < program.size(); ++pc) {
    const sock_filter& i = program[pc];
    switch (i.code) {
      case BPF_LD | BPF_W | BPF_ABS:
        memcpy(&a, reinterpret_cast<const char*>(&data) + i.k, 4);
        break;
      case BPF_JMP | BPF_JA:
        pc += i.k;
        break;
      case BPF_JMP | BPF_JEQ | BPF_K:
        pc += a == i.k ? i.jt : i.jf;
        break;
      case BPF_JMP | BPF_JGE | BPF_K:
        pc += a >= i.k ? i.jt : i.jf;
        break;
      case BPF_JMP | BPF_JSET | BPF_K:
        pc += (a & i.k) != 0 ? i.jt : i.jf;
        break;
      case BPF_RET | BPF_K:
        return i.k;
      default:
        ADD_FAILURE() << "unexpected instruction " << i.code;
        return 0;
    }
  }
  ADD_FAILURE() << "ran off the end";
  return 0;
}

uint32_t Ask(long nr, uint64_t arg0 = 0, uint64_t arg1 = 0, uint32_t arch = AUDIT_ARCH_X86_64) {
  static const std::vector<sock_filter> program = BuildSyscallFilter();
  seccomp_data data = {};
  data.nr = static_cast<int>(nr);
  data.arch = arch;
  data.args[0] = arg0;
  data.args[1] = arg1;
  return Simulate(program, data);
}

constexpr uint32_t kAllowed = SECCOMP_RET_ALLOW;
constexpr uint32_t Failing(int error) { return SECCOMP_RET_ERRNO | static_cast<uint32_t>(error); }

#if defined(__x86_64__)
TEST(SyscallFilter, AllowsWhatProgramsNeed) {
  for (long nr : {__NR_read, __NR_openat, __NR_execve, __NR_fork, __NR_vfork, __NR_ptrace,
                  __NR_chroot, __NR_seccomp, __NR_setuid, __NR_name_to_handle_at, __NR_statx,
                  __NR_openat2, __NR_futex_waitv, __NR_mknodat, __NR_exit_group, __NR_prctl}) {
    EXPECT_EQ(Ask(nr), kAllowed) << nr;
  }
  for (long nr : {451, 452, 454, 456, 462, 466}) EXPECT_EQ(Ask(nr), kAllowed) << nr;
}

TEST(SyscallFilter, RefusesAdministrationOnBothSidesOfEachBoundary) {
  for (long nr : {__NR_mount, __NR_umount2, __NR_pivot_root, __NR_setns, __NR_reboot, __NR_bpf,
                  __NR_open_tree, __NR_move_mount, __NR_fsopen, __NR_fsconfig, __NR_fsmount,
                  __NR_fspick, __NR_mount_setattr, __NR_open_by_handle_at, __NR_swapon,
                  __NR_perf_event_open, __NR_init_module, __NR_kexec_load, __NR_iopl}) {
    EXPECT_EQ(Ask(nr), Failing(EPERM)) << nr;
  }
  for (long nr : {__NR_clone3, __NR_io_uring_setup, __NR_io_uring_register, __NR_userfaultfd,
                  __NR_keyctl, __NR_add_key, __NR_request_key, __NR_modify_ldt}) {
    EXPECT_EQ(Ask(nr), Failing(ENOSYS)) << nr;
  }
  EXPECT_EQ(Ask(__NR_pidfd_open), kAllowed);  // between fspick and clone3
  EXPECT_EQ(Ask(__NR_close_range), kAllowed);
}

TEST(SyscallFilter, RefusesNumbersThatAreNewerThanTheTable) {
  for (long nr : {453, 457, 458, 461, 467, 500, 100'000}) EXPECT_EQ(Ask(nr), Failing(ENOSYS)) << nr;
  EXPECT_EQ(Ask(-1), Failing(ENOSYS));
}

TEST(SyscallFilter, RefusesForeignAbis) {
  EXPECT_EQ(Ask(__NR_read, 0, 0, AUDIT_ARCH_I386), Failing(ENOSYS));
  EXPECT_EQ(Ask(0x40000000 | __NR_read), Failing(ENOSYS));  // x32
}

TEST(SyscallFilter, LooksAtTheArguments) {
  EXPECT_EQ(Ask(__NR_clone, CLONE_VM | CLONE_THREAD | CLONE_SIGHAND), kAllowed);
  EXPECT_EQ(Ask(__NR_clone, SIGCHLD), kAllowed);
  for (uint64_t flag : {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC,
                        CLONE_NEWUTS, CLONE_NEWCGROUP}) {
    EXPECT_EQ(Ask(__NR_clone, flag | SIGCHLD), Failing(EPERM)) << flag;
    EXPECT_EQ(Ask(__NR_unshare, flag), Failing(EPERM)) << flag;
  }
  EXPECT_EQ(Ask(__NR_unshare, 0x80), Failing(EPERM));
  EXPECT_EQ(Ask(__NR_unshare, CLONE_FS | CLONE_FILES), kAllowed);
  EXPECT_EQ(Ask(__NR_ioctl, 0, TCGETS), kAllowed);
  EXPECT_EQ(Ask(__NR_ioctl, 0, TIOCSTI), Failing(EPERM));
  EXPECT_EQ(Ask(__NR_ioctl, 0, (uint64_t{1} << 32) | TIOCSTI), Failing(EPERM));
  EXPECT_EQ(Ask(__NR_ioctl, 0, TIOCLINUX), Failing(EPERM));
  for (int domain : {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK}) {
    EXPECT_EQ(Ask(__NR_socket, static_cast<uint64_t>(domain)), kAllowed) << domain;
  }
  for (int domain : {AF_VSOCK, AF_ALG, AF_PACKET, AF_BLUETOOTH, AF_XDP}) {
    EXPECT_EQ(Ask(__NR_socket, static_cast<uint64_t>(domain)), Failing(EAFNOSUPPORT)) << domain;
  }
  for (long nr : {__NR_prlimit64, __NR_sched_setscheduler, __NR_sched_setparam, __NR_sched_setattr,
                  __NR_sched_setaffinity}) {
    EXPECT_EQ(Ask(nr, 1), Failing(EPERM)) << nr;  // PID 1 has the sandbox root's uid
    EXPECT_EQ(Ask(nr, 0), kAllowed) << nr;
    EXPECT_EQ(Ask(nr, 17), kAllowed) << nr;
  }
  for (long nr : {__NR_setpriority, __NR_ioprio_set}) {
    EXPECT_EQ(Ask(nr, 0, 1), Failing(EPERM)) << nr;
    EXPECT_EQ(Ask(nr, 1, 0), kAllowed) << nr;
  }
  EXPECT_EQ(Ask(__NR_personality, 0xffffffff), kAllowed);
  EXPECT_EQ(Ask(__NR_personality, 0x0400000), Failing(EPERM));  // READ_IMPLIES_EXEC
}
#endif

// The kernel takes the program, and answers as the simulation says.
TEST(SyscallFilter, WorksInAChild) {
  pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    std::vector<sock_filter> program = BuildSyscallFilter();
    sock_fprog prog = {static_cast<unsigned short>(program.size()), program.data()};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) _exit(10);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) != 0) _exit(11);
    if (syscall(SYS_unshare, CLONE_NEWUSER) != -1 || errno != EPERM) _exit(12);
    if (syscall(SYS_socket, AF_ALG, SOCK_SEQPACKET, 0) != -1 || errno != EAFNOSUPPORT) _exit(13);
    if (syscall(SYS_clone3, nullptr, 0) != -1 || errno != ENOSYS) _exit(14);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || close(fd) != 0) _exit(15);
    pid_t child = fork();  // glibc falls back from clone3 where it tries that first
    if (child == 0) _exit(0);
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) _exit(16);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0) << "exit code " << WEXITSTATUS(status);
}

TEST(SyscallFilter, FileIsSealedAndWhole) {
  std::vector<sock_filter> program = BuildSyscallFilter();
  Result<UniqueFd> fd = MakeFilterFile(program);
  ASSERT_TRUE(fd.ok()) << fd.status().ToString();
  EXPECT_LT(write(fd->get(), "x", 1), 0);
  EXPECT_LT(ftruncate(fd->get(), 0), 0);
  std::vector<sock_filter> back(program.size());
  size_t bytes = program.size() * sizeof(sock_filter);
  ASSERT_EQ(pread(fd->get(), back.data(), bytes + 1, 0), static_cast<ssize_t>(bytes));
  EXPECT_EQ(memcmp(back.data(), program.data(), bytes), 0);
  EXPECT_LT(program.size(), 300u);
}

}  // namespace
}  // namespace esker::keeper
