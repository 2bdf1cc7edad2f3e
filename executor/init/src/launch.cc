#include "launch.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>

namespace esker {
namespace {

constexpr unsigned kPtmxMajor = 5, kPtmxMinor = 2, kNullMajor = 1, kNullMinor = 3;

struct PipeEnds {
  UniqueFd read, write;
};

Result<PipeEnds> MakePipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoError("make a pipe");
  return PipeEnds{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// An empty input. The sandbox's root may have put anything in the place of /dev/null; then it is a
// pipe that nobody writes to.
Result<UniqueFd> OpenNothing() {
  UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat st;
  if (fd.valid() && ::fstat(fd.get(), &st) == 0 && S_ISCHR(st.st_mode) &&
      st.st_rdev == makedev(kNullMajor, kNullMinor)) {
    return fd;
  }
  ESKER_ASSIGN_OR_RETURN(PipeEnds pipe, MakePipe());
  return std::move(pipe.read);
}

struct Terminal {
  UniqueFd master, slave;
};

// From the sandbox's own devpts. The name could be anything by now, the device number could not.
Result<Terminal> OpenTerminal(uint16_t rows, uint16_t columns) {
  constexpr int kFlags = O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK;
  Terminal out;
  for (const char* name : {"/dev/pts/ptmx", "/dev/ptmx"}) {
    out.master.reset(::open(name, kFlags));
    struct stat st;
    if (!out.master.valid()) continue;
    if (::fstat(out.master.get(), &st) == 0 && S_ISCHR(st.st_mode) &&
        st.st_rdev == makedev(kPtmxMajor, kPtmxMinor)) {
      break;
    }
    out.master.reset();
  }
  if (!out.master.valid()) {
    return FailedPreconditionError("open a terminal: the sandbox has no usable /dev/pts/ptmx");
  }
  ::fcntl(out.master.get(), F_SETFL, O_RDWR);
  int unlock = 0;
  if (::ioctl(out.master.get(), TIOCSPTLCK, &unlock) != 0) return ErrnoError("unlock a terminal");
  out.slave.reset(::ioctl(out.master.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!out.slave.valid()) return ErrnoError("open a terminal's other side");
  winsize size = {};
  size.ws_row = rows;
  size.ws_col = columns;
  if (::ioctl(out.master.get(), TIOCSWINSZ, &size) != 0) return ErrnoError("size a terminal");
  return out;
}

// The child's ends, closed in init once the child has its copies.
struct ChildSide {
  UniqueFd in, out, err;
};

Status MakeStreams(const InitCommandSpec& spec, Launched& ours, ChildSide& theirs) {
  if (spec.pty) {
    ESKER_ASSIGN_OR_RETURN(Terminal terminal, OpenTerminal(spec.rows, spec.cols));
    ours.out = std::move(terminal.master);
    theirs.in = std::move(terminal.slave);
    return OkStatus();
  }
  if (spec.want_stdin) {
    ESKER_ASSIGN_OR_RETURN(PipeEnds in, MakePipe());
    ours.in = std::move(in.write);
    theirs.in = std::move(in.read);
  } else {
    ESKER_ASSIGN_OR_RETURN(theirs.in, OpenNothing());
  }
  ESKER_ASSIGN_OR_RETURN(PipeEnds out, MakePipe());
  ESKER_ASSIGN_OR_RETURN(PipeEnds err, MakePipe());
  ours.out = std::move(out.read);
  ours.err = std::move(err.read);
  theirs.out = std::move(out.write);
  theirs.err = std::move(err.write);
  return OkStatus();
}

pid_t CloneInto(int cgroup_fd) {
  clone_args args = {};
  args.flags = CLONE_INTO_CGROUP;
  args.exit_signal = SIGCHLD;
  args.cgroup = static_cast<uint64_t>(cgroup_fd);
  return static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof(args)));
}

Status StartFailure(int error) {
  if (error == EAGAIN) {
    return Status::FromErrno(EAGAIN, "start a command: the sandbox's limit of processes is reached")
        .WithCode(Code::kResourceExhausted);
  }
  return Status::FromErrno(error, "start a command");
}

}  // namespace

std::string CommandCgroup(const std::string& command_id) { return "c-" + command_id; }

Result<Launched> Launch(const InitCommandSpec& spec, const LaunchContext& context) {
  Launched ours;
  ChildSide theirs;
  ESKER_RETURN_IF_ERROR(MakeStreams(spec, ours, theirs));
  ESKER_ASSIGN_OR_RETURN(PipeEnds progress, MakePipe());

  std::string name = CommandCgroup(spec.command_id);
  if (::mkdirat(context.cgroup_fd, name.c_str(), 0755) != 0) {
    return ErrnoError("make the command's cgroup");
  }
  UniqueFd cgroup(::openat(context.cgroup_fd, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  pid_t pid = cgroup.valid() ? CloneInto(cgroup.get()) : -1;
  if (pid == 0) {
    ChildEnds ends = {.in = theirs.in.get(),
                      .out = spec.pty ? theirs.in.get() : theirs.out.get(),
                      .err = spec.pty ? theirs.in.get() : theirs.err.get(),
                      .terminal = spec.pty,
                      .progress = progress.write.get()};
    RunChild(spec, ends, context);
  }
  if (pid < 0) {
    int error = errno;
    ::unlinkat(context.cgroup_fd, name.c_str(), AT_REMOVEDIR);
    return StartFailure(error);
  }
  ours.pid = pid;
  ours.progress = std::move(progress.read);
  ::fcntl(ours.progress.get(), F_SETFL, O_NONBLOCK);
  return ours;
}

}  // namespace esker
