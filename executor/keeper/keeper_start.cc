#include "keeper_start.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "base/io.h"
#include "base/process.h"
#include "base/socket.h"

namespace esker::keeper {
namespace {

constexpr int kStartDeadlineMs = 30'000;

// "ok", or what went wrong, until the end of the pipe.
Result<std::string> ReadOutcome(int pipe) {
  std::string outcome;
  for (;;) {
    ESKER_RETURN_IF_ERROR(WaitReadable(pipe, kStartDeadlineMs));
    char buffer[1024];
    ESKER_ASSIGN_OR_RETURN(size_t n, ReadFull(pipe, buffer, sizeof(buffer)));
    if (n == 0) return outcome;
    outcome.append(buffer, n);
  }
}

}  // namespace

Result<UniqueFd> LockStart(const KeeperOptions& options) {
  std::string run = options.data_directory + "/run";
  ESKER_RETURN_IF_ERROR(MakeDirectories(run));
  std::string path = run + "/keeper.start";
  ESKER_ASSIGN_OR_RETURN(UniqueFd lock, OpenFile(path, O_RDWR | O_CREAT, 0600));
  while (flock(lock.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return ErrnoError("lock " + path);
  }
  return lock;
}

Status StartKeeper(const KeeperOptions& options) {
  std::string run = options.data_directory + "/run";
  ESKER_RETURN_IF_ERROR(MakeDirectories(run));
  std::string log_path = run + "/keeper.log";
  ESKER_ASSIGN_OR_RETURN(UniqueFd log, OpenFile(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600));
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return ErrnoError("make the keeper's readiness pipe");
  UniqueFd read_end(fds[0]), write_end(fds[1]);
  SpawnOptions spawn;
  spawn.argv = {options.binary_directory + "/esker-keeper",
                "--data",
                options.data_directory,
                "--store",
                options.store_directory,
                "--cache",
                options.cache_directory,
                "--bin",
                options.binary_directory,
                "--first-id",
                std::to_string(options.first_host_id),
                "--range",
                std::to_string(options.range_size),
                "--ready-fd",
                "3"};
  spawn.pass_fds = {{write_end.get(), 3}};
  spawn.stdout_fd = spawn.stderr_fd = log.get();
  spawn.new_session = true;
  ESKER_ASSIGN_OR_RETURN(Process launcher, Process::Spawn(spawn));
  write_end.reset();
  // The launcher forks the keeper and ends; the pipe stays open until the keeper has spoken.
  ESKER_ASSIGN_OR_RETURN(int status, launcher.Reap());
  Result<std::string> outcome = ReadOutcome(read_end.get());
  if (!outcome.ok()) return outcome.status().Wrap("start the keeper; its log is " + log_path);
  if (*outcome == "ok") return OkStatus();
  std::string why = !outcome->empty() ? *outcome
                    : status != 0     ? "it ended with wait status " + std::to_string(status)
                                      : "it ended without a word";
  return FailedPreconditionError("the keeper did not start: " + why + "; its log is " + log_path);
}

}  // namespace esker::keeper
