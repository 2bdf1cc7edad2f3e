#include "commands.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "protocol.h"

namespace esker {
namespace {

// How long a time-out waits for the killed tree before it reports anyway (a process may hang in
// the kernel for a while).
constexpr int64_t kKillGraceNanos = 1'000'000'000;
// Commands go first when the sandbox runs out of memory, init last.
constexpr int kOomScoreOffset = 200;

int64_t Now(clockid_t clock) {
  timespec now;
  ::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// FNV-1a; tells a repeated request from another one under the same id, nothing more.
uint64_t HashSpec(const InitCommandSpec& spec) {
  WireWriter writer;
  init_protocol::Put(writer, spec);
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : writer.data()) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

// The same rule as base's CheckIdentifier; the id becomes a directory name.
bool ValidId(const std::string& id) {
  if (id.empty() || id.size() > 64 || id[0] == '.' || id[0] == '-') return false;
  return std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  });
}

bool WriteFile(const char* path, const char* text, int dirfd = AT_FDCWD) {
  UniqueFd fd(::openat(dirfd, path, O_WRONLY | O_CLOEXEC));
  auto size = static_cast<ssize_t>(std::strlen(text));
  return fd.valid() && ::write(fd.get(), text, static_cast<size_t>(size)) == size;
}

// Only after execve: before it the child shares init's protected memory, whose proc files nobody
// in the sandbox may write.
void RaiseOomScore(pid_t pid) {
  char path[64], text[16] = {};
  std::snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", pid);
  UniqueFd fd(::open(path, O_RDWR | O_CLOEXEC));
  if (!fd.valid() || ::read(fd.get(), text, sizeof(text) - 1) <= 0) return;
  int score = std::min(1000, std::atoi(text) + kOomScoreOffset);
  int size = std::snprintf(text, sizeof(text), "%d", score);
  ssize_t ignored = ::pwrite(fd.get(), text, static_cast<size_t>(size), 0);
  (void)ignored;  // a preference, not a promise
}

bool Populated(int events_fd) {
  char text[128] = {};
  ssize_t size = ::pread(events_fd, text, sizeof(text) - 1, 0);
  // ENODEV: the cgroup was removed.
  return size > 0 && std::strstr(text, "populated 1") != nullptr;
}

// How long the sandbox has been frozen in all; 0 on kernels that do not count it (before 6.18).
int64_t FrozenNanos(int cgroup_fd) {
  UniqueFd fd(::openat(cgroup_fd, "cgroup.stat.local", O_RDONLY | O_CLOEXEC));
  char text[256] = {};
  if (!fd.valid() || ::read(fd.get(), text, sizeof(text) - 1) <= 0) return 0;
  const char* found = std::strstr(text, "frozen_usec ");
  return found == nullptr ? 0 : std::atoll(found + std::strlen("frozen_usec ")) * 1000;
}

Status NoSuchCommand(const std::string& id) {
  return NotFoundError("no command \"" + id.substr(0, 64) +
                       "\" here: never started, or ended and acknowledged");
}

}  // namespace

int64_t MonotonicNanos() { return Now(CLOCK_MONOTONIC); }
int64_t WallNanos() { return Now(CLOCK_REALTIME); }

Result<Command*> CommandTable::Start(const InitCommandSpec& spec) {
  if (!ValidId(spec.command_id)) return InvalidArgumentError("bad command id");
  uint64_t hash = HashSpec(spec);
  if (Command* existing = Find(spec.command_id)) {
    if (existing->spec_hash == hash) return existing;
    return AlreadyExistsError("another command has the id \"" + spec.command_id + "\"");
  }
  if (by_id_.size() >= max_open_) {
    return ResourceExhaustedError("start a command: " + std::to_string(by_id_.size()) +
                                  " others are running or unacknowledged");
  }
  ESKER_ASSIGN_OR_RETURN(Launched launched, Launch(spec, context_));
  auto command = std::make_unique<Command>();
  command->serial = next_serial_++;
  command->spec_hash = hash;
  command->pty = spec.pty;
  command->status.command_id = spec.command_id;
  command->status.pid = launched.pid;
  command->status.started_ns = WallNanos();
  command->in = std::move(launched.in);
  command->out = std::move(launched.out);
  command->err = std::move(launched.err);
  command->progress = std::move(launched.progress);
  Command* raw = command.get();
  by_serial_[raw->serial] = raw;
  leaders_[launched.pid] = raw;
  by_id_[spec.command_id] = std::move(command);
  if (spec.timeout_ms > 0) {
    int64_t bounded = std::min<int64_t>(spec.timeout_ms, INT64_MAX / 4'000'000);
    raw->frozen_ns = FrozenNanos(context_.cgroup_fd);
    SetDeadline(*raw, MonotonicNanos() + bounded * 1'000'000);
  }
  observer_.WatchCommand(raw->progress.get(), CommandObserver::Watch::kProgress, raw->serial);
  return raw;
}

Command* CommandTable::Find(const std::string& id) {
  auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second.get();
}

Command* CommandTable::FindSerial(uint64_t serial) {
  auto found = by_serial_.find(serial);
  return found == by_serial_.end() ? nullptr : found->second;
}

Status CommandTable::Signal(const std::string& id, int number, bool whole_tree) {
  Command* command = Find(id);
  if (command == nullptr) return NoSuchCommand(id);
  if (whole_tree) return KillTree(*command);
  // Until we reap it the pid is its own, so this cannot hit another process.
  if (command->reaped) return FailedPreconditionError("the command has ended");
  if (::kill(command->status.pid, number) != 0) {
    return ErrnoError("signal the command with " + std::to_string(number));
  }
  return OkStatus();
}

Status CommandTable::KillTree(Command& command) {
  if (command.cgroup_gone) return OkStatus();
  std::string path = CommandCgroup(command.status.command_id) + "/cgroup.kill";
  if (!WriteFile(path.c_str(), "1", context_.cgroup_fd))
    return ErrnoError("kill the command's cgroup");
  return OkStatus();
}

Status CommandTable::CloseStdin(const std::string& id) {
  Command* command = Find(id);
  if (command == nullptr) return NoSuchCommand(id);
  if (command->pty) {
    return FailedPreconditionError(
        "a terminal has no end of input; send its end-of-file character");
  }
  command->in.reset();
  return OkStatus();
}

Status CommandTable::Resize(const std::string& id, uint16_t rows, uint16_t cols) {
  Command* command = Find(id);
  if (command == nullptr) return NoSuchCommand(id);
  if (!command->pty || !command->out.valid()) {
    return FailedPreconditionError("the command has no terminal");
  }
  winsize size = {};
  size.ws_row = rows;
  size.ws_col = cols;
  if (::ioctl(command->out.get(), TIOCSWINSZ, &size) != 0) return ErrnoError("resize the terminal");
  return OkStatus();
}

void CommandTable::Acknowledge(const std::string& id) {
  Command* command = Find(id);
  if (command == nullptr || !command->ended()) return;
  command->acknowledged = true;
  // Mostly they are acknowledged in order, so this looks at few.
  auto listed = std::find(ended_.begin(), ended_.end(), command->serial);
  if (listed != ended_.end()) ended_.erase(listed);
  command->in.reset();
  command->out.reset();
  command->err.reset();
  EraseIfDone(*command);
}

std::vector<const InitCommandStatus*> CommandTable::List() const {
  std::vector<const Command*> commands;
  for (const auto& [id, command] : by_id_) {
    if (!command->acknowledged) commands.push_back(command.get());
  }
  std::sort(commands.begin(), commands.end(),
            [](const Command* a, const Command* b) { return a->serial < b->serial; });
  std::vector<const InitCommandStatus*> out;
  for (const Command* command : commands) out.push_back(&command->status);
  return out;
}

void CommandTable::ForgetWaiters() {
  for (auto& [id, command] : by_id_) command->waiters.clear();
}

void CommandTable::OnProgress(uint64_t serial) {
  Command* command = FindSerial(serial);
  if (command == nullptr || !command->progress.valid()) return;
  ReadProgress(*command);
  // A failure is reported when the child is reaped, which is now.
  if (!command->progress.valid() && command->status.start_error.empty()) {
    RaiseOomScore(command->status.pid);
    observer_.OnStarted(*command);
  }
}

void CommandTable::ReadProgress(Command& command) {
  LaunchFailure failure;
  ssize_t size = ::read(command.progress.get(), &failure, sizeof(failure));
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  CloseWatched(command.progress);
  if (size == static_cast<ssize_t>(sizeof(failure))) {
    failure.text[sizeof(failure.text) - 1] = '\0';
    command.status.start_error = failure.text;
    command.status.exit_code = failure.exit_code;
  }
}

void CommandTable::CloseWatched(UniqueFd& fd) {
  if (!fd.valid()) return;
  observer_.Unwatch(fd.get());
  fd.reset();
}

void CommandTable::OnReaped(pid_t pid, int wait_status) {
  auto found = leaders_.find(pid);
  if (found == leaders_.end()) return;  // an orphan of somebody's
  Command& command = *found->second;
  leaders_.erase(found);
  command.reaped = true;
  if (command.progress.valid()) {
    ReadProgress(command);
    CloseWatched(command.progress);
  }
  InitCommandStatus& status = command.status;
  status.ended_ns = WallNanos();
  if (WIFSIGNALED(wait_status)) {
    status.signal = WTERMSIG(wait_status);
    status.exit_code = 128 + status.signal;
  } else if (status.start_error.empty()) {
    status.exit_code = WEXITSTATUS(wait_status);
  }
  TryRemoveCgroup(command);
  if (status.timed_out && !command.cgroup_gone) return;  // reported when all are dead
  SetDeadline(command, 0);
  End(command);
}

void CommandTable::TryRemoveCgroup(Command& command) {
  std::string name = CommandCgroup(command.status.command_id);
  if (::unlinkat(context_.cgroup_fd, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) {
    command.cgroup_gone = true;
    CloseWatched(command.events);
    return;
  }
  if (command.events.valid()) return;
  name += "/cgroup.events";
  command.events.reset(::openat(context_.cgroup_fd, name.c_str(), O_RDONLY | O_CLOEXEC));
  if (!command.events.valid()) return;
  observer_.WatchCommand(command.events.get(), CommandObserver::Watch::kCgroup, command.serial);
}

void CommandTable::OnCgroup(uint64_t serial) {
  Command* command = FindSerial(serial);
  if (command == nullptr || !command->events.valid() || Populated(command->events.get())) return;
  TryRemoveCgroup(*command);
  if (!command->ended()) {  // the time-out waited for this
    SetDeadline(*command, 0);
    End(*command);
  }
  // Ending may have forgotten it.
  if (Command* still = FindSerial(serial)) EraseIfDone(*still);
}

void CommandTable::OnDeadlines(int64_t now_ns) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_ns) {
    auto [deadline_ns, serial] = *deadlines_.begin();
    deadlines_.erase(deadlines_.begin());
    Command* command = FindSerial(serial);
    if (command == nullptr) continue;
    command->deadline_ns = 0;
    if (!command->status.timed_out) {
      if (PostponeByFreeze(*command, deadline_ns)) continue;
      command->status.timed_out = true;
      (void)KillTree(*command);  // if that fails there is nobody left to kill
      SetDeadline(*command, now_ns + kKillGraceNanos);
    } else if (command->reaped && !command->ended()) {
      End(*command);
    }
  }
}

// A paused sandbox does not use up the time of its commands.
bool CommandTable::PostponeByFreeze(Command& command, int64_t deadline_ns) {
  int64_t frozen_ns = FrozenNanos(context_.cgroup_fd);
  int64_t since = frozen_ns - command.frozen_ns;
  if (since <= 0) return false;
  command.frozen_ns = frozen_ns;
  SetDeadline(command, deadline_ns + since);
  return true;
}

int64_t CommandTable::NextDeadline() const {
  return deadlines_.empty() ? 0 : deadlines_.begin()->first;
}

void CommandTable::SetDeadline(Command& command, int64_t deadline_ns) {
  if (command.deadline_ns != 0) deadlines_.erase({command.deadline_ns, command.serial});
  command.deadline_ns = deadline_ns;
  if (deadline_ns != 0) deadlines_.insert({deadline_ns, command.serial});
}

void CommandTable::End(Command& command) {
  command.status.state = InitCommandState::kExited;
  ended_.push_back(command.serial);
  if (!command.status.start_error.empty()) {
    command.in.reset();
    command.out.reset();
    command.err.reset();
  }
  bool told = !command.waiters.empty() && !command.status.start_error.empty();
  if (!command.waiters.empty()) observer_.OnStarted(command);
  if (!told) observer_.OnEnded(command);
  BoundEnded();
}

void CommandTable::EraseIfDone(Command& command) {
  if (!command.acknowledged || !command.cgroup_gone) return;
  by_serial_.erase(command.serial);
  by_id_.erase(std::string(command.status.command_id));
}

void CommandTable::BoundEnded() {
  if (ended_.size() <= kMaxEnded) return;
  // The id is copied, since acknowledging may erase the command that holds it.
  std::string oldest = FindSerial(ended_.front())->status.command_id;
  Acknowledge(oldest);
}

}  // namespace esker
