#include "base/user_namespace.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "base/io.h"
#include "base/scope_guard.h"

namespace esker {

Result<UniqueFd> MakeUserNamespace(uint32_t first_id, uint32_t size) {
  int hold[2];
  if (pipe2(hold, O_CLOEXEC) != 0) return ErrnoError("make a pipe");
  UniqueFd read_end(hold[0]), write_end(hold[1]);
  clone_args args = {};
  args.flags = CLONE_NEWUSER;
  args.exit_signal = SIGCHLD;
  pid_t pid = static_cast<pid_t>(syscall(SYS_clone3, &args, sizeof(args)));
  if (pid < 0) return ErrnoError("clone3 into a new user namespace");
  if (pid == 0) {
    // Keeps the namespace alive until the parent has opened it.
    close(hold[1]);
    char byte;
    ssize_t ignored = read(hold[0], &byte, 1);
    (void)ignored;
    _exit(0);
  }
  ScopeGuard reap([&] {
    write_end.reset();
    waitpid(pid, nullptr, 0);
  });
  std::string proc = "/proc/" + std::to_string(pid) + "/";
  std::string map = "0 " + std::to_string(first_id) + " " + std::to_string(size) + "\n";
  ESKER_RETURN_IF_ERROR(WriteStringToFile(proc + "uid_map", map));
  ESKER_RETURN_IF_ERROR(WriteStringToFile(proc + "gid_map", map));
  return OpenFile(proc + "ns/user", O_RDONLY);
}

}  // namespace esker
