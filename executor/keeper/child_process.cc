#include "child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "base/io.h"

namespace esker::keeper {

Result<Process> ForkChild(const std::function<int()>& body) {
  pid_t keeper = getpid();
  pid_t pid = fork();
  if (pid < 0) return ErrnoError("fork a helper");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != keeper) _exit(1);
    _exit(body());
  }
  Result<Process> process = Process::Open(pid);
  if (!process.ok()) kill(pid, SIGKILL);  // not reaped yet, so the pid is still this child
  return process;
}

Result<Process> StartServer(const std::vector<std::string>& argv, int fd) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return ErrnoError("make a pipe");
  UniqueFd read_end(pipe_fds[0]), write_end(pipe_fds[1]);
  std::vector<char*> pointers;
  for (const std::string& a : argv) pointers.push_back(const_cast<char*>(a.c_str()));
  pointers.push_back(nullptr);
  ESKER_ASSIGN_OR_RETURN(Process process, ForkChild([&] {
                           sigset_t none;
                           sigemptyset(&none);
                           sigprocmask(SIG_SETMASK, &none, nullptr);
                           signal(SIGPIPE, SIG_DFL);
                           if (dup2(fd, 3) == 3) execv(pointers[0], pointers.data());
                           int error = errno;
                           ssize_t ignored = write(write_end.get(), &error, sizeof(error));
                           (void)ignored;
                           return 127;
                         }));
  write_end.reset();
  int error = 0;
  Result<size_t> n = ReadFull(read_end.get(), &error, sizeof(error));
  if (n.ok() && *n == 0) return process;
  ESKER_RETURN_IF_ERROR(process.Reap().ok() ? OkStatus() : InternalError("reap a child"));
  return Status::FromErrno(error, "execute " + argv[0]);
}

Status ReapWhenEnded(EventLoop& loop, Process process, std::function<void(int status)> ended) {
  auto owned = std::make_shared<Process>(std::move(process));
  int fd = owned->pidfd();
  return loop.Watch(fd, EPOLLIN, [&loop, owned, fd, ended = std::move(ended)](uint32_t) {
    loop.Unwatch(fd);  // the callback itself lives until it returns
    Result<int> status = owned->Reap();
    ended(status.ok() ? *status : 0);
  });
}

}  // namespace esker::keeper
