// The commands of a sandbox: from start to acknowledged end.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "executor/init_client.h"
#include "launch.h"

namespace esker {

struct Command {
  uint64_t serial = 0;
  InitCommandStatus status;
  uint64_t spec_hash = 0;
  bool pty = false;
  UniqueFd in, out, err;          // the node's ends, kept for the next node until acknowledged
  UniqueFd progress;              // open until execve has happened
  std::vector<uint32_t> waiters;  // start requests that wait for that
  UniqueFd events;      // cgroup.events, watched once the leader is gone but others are not
  bool reaped = false;  // the leader
  bool cgroup_gone = false;
  bool acknowledged = false;
  int64_t frozen_ns = 0;    // how long the sandbox had been frozen when the deadline was set
  int64_t deadline_ns = 0;  // monotonic; of the time-out, then of the kill that follows; 0: none

  bool ended() const { return status.state == InitCommandState::kExited; }
};

// What the table tells and needs of the loop around it.
class CommandObserver {
 public:
  virtual ~CommandObserver() = default;
  // execve has happened, or (ended) could not; answers whoever waits for the start.
  virtual void OnStarted(Command& command) = 0;
  // Not for those whose OnStarted already told that they could not be executed.
  virtual void OnEnded(Command& command) = 0;
  enum class Watch : uint8_t { kProgress, kCgroup };
  virtual void WatchCommand(int fd, Watch what, uint64_t serial) = 0;
  // Before it is closed: a child that is not yet at execve may keep the open file alive.
  virtual void Unwatch(int fd) = 0;
};

// One thread. A command is found until it is acknowledged and its cgroup is empty; of ended ones
// that nobody acknowledges the newest kMaxEnded stay.
class CommandTable {
 public:
  static constexpr size_t kMaxEnded = 4096;

  CommandTable(const LaunchContext& context, size_t max_open, CommandObserver& observer)
      : context_(context), max_open_(max_open), observer_(observer) {}

  // Starts it, or finds the one that was started under the same id. ALREADY_EXISTS when that was
  // another command.
  Result<Command*> Start(const InitCommandSpec& spec);
  Command* Find(const std::string& id);
  Status Signal(const std::string& id, int number, bool whole_tree);
  Status CloseStdin(const std::string& id);
  Status Resize(const std::string& id, uint16_t rows, uint16_t cols);
  void Acknowledge(const std::string& id);
  // Running and ended ones that are not acknowledged, in the order of their start.
  std::vector<const InitCommandStatus*> List() const;
  // Nobody waits for starts any more.
  void ForgetWaiters();

  // Events of the loop.
  void OnProgress(uint64_t serial);
  void OnCgroup(uint64_t serial);
  void OnReaped(pid_t pid, int wait_status);
  void OnDeadlines(int64_t now_ns);
  int64_t NextDeadline() const;  // 0: none

 private:
  Command* FindSerial(uint64_t serial);
  void ReadProgress(Command& command);
  void CloseWatched(UniqueFd& fd);
  void SetDeadline(Command& command, int64_t deadline_ns);
  bool PostponeByFreeze(Command& command, int64_t deadline_ns);
  Status KillTree(Command& command);
  void TryRemoveCgroup(Command& command);
  void End(Command& command);
  void EraseIfDone(Command& command);
  void BoundEnded();

  const LaunchContext& context_;
  const size_t max_open_;
  CommandObserver& observer_;
  uint64_t next_serial_ = 1;
  std::unordered_map<std::string, std::unique_ptr<Command>> by_id_;
  std::unordered_map<uint64_t, Command*> by_serial_;
  std::unordered_map<pid_t, Command*> leaders_;  // not yet reaped
  std::set<std::pair<int64_t, uint64_t>> deadlines_;
  std::deque<uint64_t> ended_;  // not acknowledged, in the order of their end
};

int64_t MonotonicNanos();
int64_t WallNanos();

}  // namespace esker
