// Command: one command of a sandbox on the node: its pipes, its output logs, its followers.
//
// Everything here happens on the event loop's thread but Info(), which any thread may call. A
// command outlives its process: it stays to be looked at until its sandbox forgets it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/status.h"
#include "executor/init_client.h"
#include "executor/node.h"
#include "output_log.h"
#include "record.h"
#include "stdin_queue.h"

namespace esker {

class Command;

// What a command needs from the node.
class CommandOwner {
 public:
  virtual ~CommandOwner() = default;
  virtual EventLoop& loop() = 0;
  // Writes the command's record; `done` comes on the loop's thread when a SIGKILL cannot lose it.
  // `exited`: it has just ended; the owner finds out whether the memory limit struck meanwhile.
  virtual void Persist(const std::shared_ptr<Command>& command, bool exited,
                       std::function<void(Status)> done) = 0;
  // All of stdin is in the pipe: init closes its duplicate, so that the command sees the end.
  virtual void CloseStdin(const Command& command) = 0;
  // Nothing more will come from its pipes and its result is recorded: init may forget it.
  virtual void Forget(const Command& command) = 0;
};

// One follower. The observer is called with `mutex` held, so that detaching waits for a call in
// progress (and may happen inside one).
struct Follower {
  std::recursive_mutex mutex;
  CommandObserver* observer = nullptr;  // guarded by mutex; null once detached
  bool want_output = true;

  // Loop thread only:
  uint64_t offset[2] = {0, 0};
  bool ready = true;
  bool told_exit = false;
  int next_stream = 0;
  int64_t waits_since_ns = 0;  // when it last got bytes and has not asked for more since
};

class Command : public std::enable_shared_from_this<Command> {
 public:
  // `log_prefix`: path of its logs without ".out" and ".err".
  Command(CommandOwner& owner, CommandRecord record, std::string log_prefix);
  ~Command();

  const std::string& id() const { return id_; }
  const std::string& sandbox_id() const { return sandbox_id_; }
  CommandInfo Info() const;
  CommandRecord Record() const;
  bool Ended() const;
  void SetOomKilled();
  uint64_t oom_kills_at_start = 0;  // of the sandbox; used by the owner only

  // --- loop thread only ------------------------------------------------------------------------
  // init has started it (or could not: then `pipes` are empty and the status has ended), or hands
  // it over again.
  Status Begin(const InitCommandStatus& status, InitCommandPipes pipes);
  // init says it has ended. Drains its output for a short grace, then tells the followers.
  void OnExit(const InitCommandStatus& status);
  // Its sandbox is gone: takes what the pipes still hold, then ends it for `reason`.
  void EndWithSandbox(const std::string& reason);
  bool has_pipes() const { return streams_[0].pipe.valid() || streams_[1].pipe.valid(); }
  // Closes everything without a word (the node goes away, the sandbox stays).
  void Release();

  void Attach(std::shared_ptr<Follower> follower);
  void Detach(const std::shared_ptr<Follower>& follower);
  void FollowerReady(const std::shared_ptr<Follower>& follower);

  // `done`: total bytes accepted, when these bytes are in the pipe.
  void SendStdin(std::string data, bool eof, std::optional<uint64_t> offset,
                 std::function<void(Result<uint64_t>)> done);

 private:
  struct Stream {
    UniqueFd pipe;
    std::optional<OutputLog> log;
    bool watched = false;
    uint64_t turn_bytes = 0;  // moved since turn_began_ns
    int64_t turn_began_ns = 0;
    bool resting = false;  // moved its share of this turn; a timer wakes it
  };

  Status OpenLog(int stream);
  void StartWatching(int stream);
  void StopWatching(int stream);
  void OnReadable(int stream);
  bool TookItsShare(int stream, uint64_t bytes);
  // Moves what is there, at most one share; false at the end of the stream.
  OutputLog::Moved Pump(int stream, size_t limit);
  void CloseStream(int stream);
  bool HeldBack(int stream) const;  // a follower lags too far: let the command wait
  void Recheck();
  void Feed(Follower& follower);
  void FeedAll();
  void StartDrain();
  void CheckDrain();
  void FinishDrain();
  void MaybeFinish();
  void UpdateSizes();
  uint64_t keep() const;

  CommandOwner& owner_;
  const std::string id_, sandbox_id_, log_prefix_;
  mutable std::mutex mutex_;  // guards record_
  CommandRecord record_;

  // Loop thread only:
  Stream streams_[2];
  StdinQueue stdin_;
  std::vector<std::shared_ptr<Follower>> followers_;
  EventLoop::TimerId recheck_timer_ = 0, drain_timer_ = 0;
  bool pty_ = false;
  bool exit_seen_ = false, exit_recorded_ = false, drained_ = false, finished_ = false;
  bool forgotten_ = false;
  bool begun_ = false;
  std::optional<InitCommandStatus> early_exit_;  // told before Begin
  int64_t drain_until_ns_ = 0, last_output_ns_ = 0;
};

}  // namespace esker
