#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/io.h"
#include "base/socket.h"

extern char** environ;

namespace esker {
namespace {

std::string FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "/usr/sbin:/usr/bin:/sbin:/bin";
  while (!rest.empty()) {
    size_t colon = rest.find(':');
    std::string candidate = std::string(rest.substr(0, colon)) + "/" + name;
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    rest = colon == rest.npos ? "" : rest.substr(colon + 1);
  }
  return name;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

struct ChildPlan {
  const char* program;
  char** argv;
  char** env;
  int in, out, err;
  int report;  // where errno goes when exec fails; moved above all targets
  bool new_session;
  const std::pair<int, int>* pass;
  size_t pass_count;
};

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void RunChild(const ChildPlan& plan) {
  auto fail = [&]() {
    int error = errno;
    ssize_t ignored = ::write(plan.report, &error, sizeof(error));
    (void)ignored;
    ::_exit(127);
  };
  if (plan.new_session && ::setsid() < 0) fail();
  if (plan.in >= 0 && ::dup2(plan.in, 0) < 0) fail();
  if (plan.out >= 0 && ::dup2(plan.out, 1) < 0) fail();
  if (plan.err >= 0 && ::dup2(plan.err, 2) < 0) fail();
  for (size_t i = 0; i < plan.pass_count; ++i) {
    if (::dup2(plan.pass[i].first, plan.pass[i].second) < 0) fail();
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::execve(plan.program, plan.argv, plan.env);
  fail();
  ::_exit(127);
}

}  // namespace

Result<Process> Process::Spawn(const SpawnOptions& options) {
  if (options.argv.empty()) return InvalidArgumentError("spawn: empty argv");
  std::string program = FindProgram(options.argv[0]);
  std::vector<std::string> argv = options.argv;
  std::vector<std::string> env = options.env;
  for (char** e = environ; *e != nullptr; ++e) {
    std::string_view name = std::string_view(*e).substr(0, std::string_view(*e).find('='));
    bool replaced = std::any_of(options.env.begin(), options.env.end(), [&](const std::string& s) {
      return s.size() > name.size() && s.starts_with(name) && s[name.size()] == '=';
    });
    if (!replaced) env.emplace_back(*e);
  }
  std::vector<char*> argv_pointers = Pointers(argv), env_pointers = Pointers(env);

  // Sources and the report pipe move above every target number, so that no dup2 overwrites one.
  int high = 10;
  for (auto& [from, to] : options.pass_fds) high = std::max({high, from + 1, to + 1});
  std::vector<UniqueFd> moved;
  std::vector<std::pair<int, int>> pass;
  for (auto& [from, to] : options.pass_fds) {
    UniqueFd copy(::fcntl(from, F_DUPFD_CLOEXEC, high));
    if (!copy.valid()) return ErrnoError("spawn " + program + ": duplicate descriptor");
    pass.emplace_back(copy.get(), to);
    moved.push_back(std::move(copy));
  }
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) return ErrnoError("spawn " + program + ": pipe");
  UniqueFd read_end(pipe_fds[0]), write_end(pipe_fds[1]);
  UniqueFd report(::fcntl(write_end.get(), F_DUPFD_CLOEXEC, high));
  write_end.reset();
  UniqueFd null;
  if (options.stdin_fd < 0) {
    ESKER_ASSIGN_OR_RETURN(null, OpenFile("/dev/null", O_RDONLY));
  }
  ChildPlan plan = {program.c_str(),     argv_pointers.data(),
                    env_pointers.data(), options.stdin_fd >= 0 ? options.stdin_fd : null.get(),
                    options.stdout_fd,   options.stderr_fd,
                    report.get(),        options.new_session,
                    pass.data(),         pass.size()};
  pid_t pid = ::fork();
  if (pid < 0) return ErrnoError("spawn " + program + ": fork");
  if (pid == 0) RunChild(plan);
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  int pidfd_errno = errno;
  report.reset();
  int error = 0;
  Result<size_t> n = ReadFull(read_end.get(), &error, sizeof(error));
  if (n.ok() && *n == sizeof(error)) {
    ::waitpid(pid, nullptr, 0);
    return Status::FromErrno(error, "execute " + program);
  }
  if (!pidfd.valid()) return Status::FromErrno(pidfd_errno, "pidfd_open");
  return FromPidfd(pid, std::move(pidfd));
}

Result<Process> Process::Open(pid_t pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.valid()) return ErrnoError("open process " + std::to_string(pid));
  return FromPidfd(pid, std::move(fd));
}

Result<Process> Process::Open(const ProcessIdentity& identity) {
  ESKER_ASSIGN_OR_RETURN(Process process, Open(identity.pid));
  ESKER_ASSIGN_OR_RETURN(ProcessIdentity now, process.identity());
  if (now != identity) {
    return NotFoundError("process " + std::to_string(identity.pid) +
                         " has ended (its pid is reused)");
  }
  return process;
}

Process Process::FromPidfd(pid_t pid, UniqueFd pidfd) {
  Process process;
  process.pid_ = pid;
  process.pidfd_ = std::move(pidfd);
  return process;
}

Result<ProcessIdentity> Process::identity() const {
  struct stat st;
  if (::fstat(pidfd_.get(), &st) != 0) return ErrnoError("stat pidfd");
  return ProcessIdentity{pid_, st.st_ino};
}

Status Process::Kill(int signal) const {
  if (::syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0) == 0 || errno == ESRCH) {
    return OkStatus();
  }
  return ErrnoError("signal process " + std::to_string(pid_));
}

Status Process::WaitExit(int timeout_ms) const { return WaitReadable(pidfd_.get(), timeout_ms); }

Result<int> Process::Reap() {
  int status = 0;
  pid_t got;
  do {
    got = ::waitpid(pid_, &status, 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return ErrnoError("reap process " + std::to_string(pid_));
  return status;
}

bool Process::Running() const {
  pollfd p = {pidfd_.get(), POLLIN, 0};
  return ::poll(&p, 1, 0) == 0;
}

Result<CommandOutput> RunCommand(const std::vector<std::string>& argv, int timeout_ms) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoError("pipe");
  UniqueFd read_end(fds[0]), write_end(fds[1]);
  SpawnOptions options;
  options.argv = argv;
  options.stdout_fd = options.stderr_fd = write_end.get();
  ESKER_ASSIGN_OR_RETURN(Process process, Process::Spawn(options));
  write_end.reset();
  CommandOutput output;
  int64_t deadline = Clock::System().MonotonicNanos() + int64_t{timeout_ms} * 1'000'000;
  Status timely;
  for (char buffer[4096];;) {
    int64_t left = std::max<int64_t>(0, deadline - Clock::System().MonotonicNanos());
    timely = WaitReadable(read_end.get(), static_cast<int>(left / 1'000'000));
    if (!timely.ok()) break;
    ssize_t n = ::read(read_end.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    if (output.out.size() < (1u << 20)) output.out.append(buffer, static_cast<size_t>(n));
  }
  if (!timely.ok()) ESKER_RETURN_IF_ERROR(process.Kill(SIGKILL));
  ESKER_ASSIGN_OR_RETURN(int status, process.Reap());
  if (!timely.ok()) return timely.Wrap("run " + argv[0]);
  output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return output;
}

}  // namespace esker
