#include "rehearsal.h"

#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "base/unique_fd.h"
#include "imagefs/blob_server.h"

namespace esker::features {
namespace {

constexpr int kDeadlineMs = 10'000;

// Written by the child, read by the parent when it has ended.
struct Note {
  int error;
  char what[256];
};
struct Notes {
  std::array<Note, static_cast<size_t>(Step::kCount)> of;
};

Status JoinCgroups(const RehearsalPlan& plan) {
  for (int tasks : plan.v1_tasks) {
    if (write(tasks, "0", 1) != 1) return ErrnoError("join a cgroup");
  }
  return OkStatus();
}

Status EnterMountNamespace() {
  if (unshare(CLONE_NEWNS | CLONE_NEWCGROUP) != 0) {
    return ErrnoError("unshare the mount and cgroup namespaces");
  }
  if (mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) {
    return ErrnoError("separate a mount namespace");
  }
  return OkStatus();
}

Status MountFuse(const std::string& directory) {
  // Without a mount namespace of its own it would be seen by all, and stay.
  return MountBlobFs(directory).status();
}

Status MakeFileSystem(const char* type) {
  UniqueFd context(fsopen(type, FSOPEN_CLOEXEC));
  if (!context.valid()) return ErrnoError(std::string("open the file system ") + type);
  if (fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    return ErrnoError(std::string("make a ") + type);
  }
  UniqueFd made(fsmount(context.get(), FSMOUNT_CLOEXEC, 0));
  return made.valid() ? OkStatus() : ErrnoError(std::string("mount a ") + type);
}

Status MakeFileSystems() {
  for (const char* type : {"proc", "devpts", "mqueue"}) {
    ESKER_RETURN_IF_ERROR(MakeFileSystem(type));
  }
  return OkStatus();
}

Status EnterNetworkNamespace() {
  return unshare(CLONE_NEWNET) == 0 ? OkStatus() : ErrnoError("unshare the network namespace");
}

Status EnterUserNamespace(int user_ns) {
  if (user_ns < 0 || setns(user_ns, CLONE_NEWUSER) == 0) return OkStatus();
  return ErrnoError("enter a user namespace");
}

Status InstallFilter() {
  sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  sock_fprog program = {1, &allow};
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0) return OkStatus();
  return ErrnoError("install a seccomp filter");
}

[[noreturn]] void Child(const RehearsalPlan& plan, Notes& notes) {
  auto note = [&](Step step, const Status& status) {
    Note& note = notes.of[static_cast<size_t>(step)];
    note.error = status.ok() ? 0 : status.error_number() != 0 ? status.error_number() : EIO;
    if (!status.ok()) strncpy(note.what, status.message().c_str(), sizeof(note.what) - 1);
  };
  note(Step::kCgroups, JoinCgroups(plan));
  Status apart = EnterMountNamespace();
  note(Step::kMountNamespace, apart);
  note(Step::kFuse, apart.ok() ? MountFuse(plan.fuse_directory) : apart);
  note(Step::kNetworkNamespace, EnterNetworkNamespace());
  note(Step::kFileSystems, MakeFileSystems());
  note(Step::kUserNamespace, EnterUserNamespace(plan.user_ns));
  note(Step::kSeccomp, InstallFilter());
  _exit(0);
}

Status OfNote(const Note& note) {
  if (note.error == 0) return OkStatus();
  // The text says the error already; made again so that the code and the errno come along.
  return Status(CodeFromErrno(note.error), std::string(note.what));
}

}  // namespace

Rehearsal Rehearse(const RehearsalPlan& plan) {
  Rehearsal result;
  void* shared =
      mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    result.cloned = ErrnoError("map memory that a child shares");
    return result;
  }
  Notes& notes = *new (shared) Notes{};
  for (Note& note : notes.of) {
    note.error = ESRCH;
    strcpy(note.what, "the child that tries it was killed, or took longer than 10 s");
  }
  int pidfd = -1;
  clone_args args = {};
  args.flags = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_PIDFD;
  args.pidfd = reinterpret_cast<uint64_t>(&pidfd);
  args.exit_signal = SIGCHLD;
  if (plan.unified_cgroup >= 0) {
    args.flags |= CLONE_INTO_CGROUP;
    args.cgroup = static_cast<uint64_t>(plan.unified_cgroup);
  }
  pid_t pid = static_cast<pid_t>(syscall(SYS_clone3, &args, sizeof(args)));
  if (pid == 0) Child(plan, notes);
  if (pid < 0) {
    result.cloned = ErrnoError("clone3 into new pid, ipc and uts namespaces");
  } else {
    UniqueFd owned(pidfd);
    pollfd end = {pidfd, POLLIN, 0};
    if (poll(&end, 1, kDeadlineMs) == 0) kill(pid, SIGKILL);
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    for (size_t i = 0; i < notes.of.size(); ++i) result.steps[i] = OfNote(notes.of[i]);
  }
  munmap(shared, sizeof(Notes));
  return result;
}

}  // namespace esker::features
