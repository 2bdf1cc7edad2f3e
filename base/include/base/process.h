// Processes named by pidfd, never by pid alone.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker {

// Identity of a process over time: the pidfd's inode number is unique for this boot (Linux 6.9).
struct ProcessIdentity {
  pid_t pid = 0;
  uint64_t pidfd_inode = 0;
  auto operator<=>(const ProcessIdentity&) const = default;
};

struct SpawnOptions {
  std::vector<std::string> argv;  // argv[0] is the program, searched in PATH
  std::vector<std::string> env;   // "NAME=value"; added to the caller's environment
  std::vector<std::pair<int, int>>
      pass_fds;  // {ours, theirs}; theirs >= 3. All else is close-on-exec
  int stdin_fd = -1, stdout_fd = -1,
      stderr_fd = -1;        // -1: /dev/null for stdin, inherited for others
  bool new_session = false;  // setsid(): survives signals to our process group
};

// A child or foreign process. Move-only. The destructor neither kills nor reaps.
class Process {
 public:
  Process() = default;
  // Starts a program; NOT_FOUND or PERMISSION_DENIED when it cannot be executed.
  static Result<Process> Spawn(const SpawnOptions& options);
  // Opens a pidfd to a running process; NOT_FOUND when there is none.
  static Result<Process> Open(pid_t pid);
  // The same, but NOT_FOUND too when the pid now names another process than `identity`.
  static Result<Process> Open(const ProcessIdentity& identity);
  static Process FromPidfd(pid_t pid, UniqueFd pidfd);

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }
  bool valid() const { return pidfd_.valid(); }
  Result<ProcessIdentity> identity() const;
  // OK also when it is already dead.
  Status Kill(int signal) const;
  // Waits for the end; -1: for ever. DEADLINE_EXCEEDED otherwise. Works for any process.
  Status WaitExit(int timeout_ms) const;
  // Reaps our own child; the raw wait status (see waitpid(2)).
  Result<int> Reap();
  bool Running() const;

 private:
  pid_t pid_ = 0;
  UniqueFd pidfd_;
};

struct CommandOutput {
  int exit_code = 0;  // 128 + signal when killed by one
  std::string out;    // stdout and stderr together, at most 1 MiB
};
// Runs a tool of the host to its end and captures its output; for mkfs and the like.
Result<CommandOutput> RunCommand(const std::vector<std::string>& argv, int timeout_ms = 60'000);

}  // namespace esker
