// Sandbox: what the node keeps in memory of one sandbox, alive or ended.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "record.h"
#include "snapshotter/index.h"
#include "strand.h"

namespace esker {

struct Sandbox {
  Sandbox(WorkerPool& pool, SandboxRecord r) : id(r.info.id), strand(pool), record(std::move(r)) {}

  const std::string id;
  Strand strand;  // every change of the phase happens on it

  // Guards the block below; never held across a system call. Innermost lock.
  mutable std::mutex mutex;
  SandboxRecord record;
  std::map<std::string, std::shared_ptr<Command>> commands;
  std::map<std::string, std::string> command_of_request;
  uint64_t next_event = 0;
  std::optional<int> init_status;  // wait status of PID 1, once the keeper has told
  // It has ended. kCleaned: nothing is left of it but the keeper's word.
  enum class Leftover : uint8_t { kThere, kBeingRemoved, kCleaned } leftover = Leftover::kThere;
  std::condition_variable init_ended;

  size_t calls_in_flight = 0;  // that need its processes to run
  std::condition_variable calls_done;

  std::atomic<int64_t> last_used_ns{0};             // monotonic
  std::atomic<bool> cancelled{false};               // a delete waits: give up building it
  std::atomic<bool> end_posted{false};              // its end is on the strand already
  std::atomic<bool> with_keeper{false};             // the keeper knows it: its end will be told
  std::atomic<uint64_t> oom_kills{0};               // the last known count ...
  std::atomic<int64_t> last_oom_ns{INT64_MIN / 2};  // ... and when it was seen to grow

  // Strand only; the reaper's once it has ended.
  std::unique_ptr<Lease> lease;
  bool has_range = false;
  bool unleased = false;  // see NodeImpl::unleased_

  // Loop thread only.
  std::unique_ptr<InitClient> init;
  Status gone;  // not OK: why calls fail at once
  std::vector<std::function<void(Status)>> told_when_gone;
  bool pausing = false;      // calls take their turn on the strand and resume it again
  size_t open_commands = 0;  // those that hold descriptors
  size_t forgotten_commands = 0;
  // Those that are being started, with who waits for the answer.
  std::map<std::string, std::vector<std::function<void(Result<CommandInfo>)>>> launching;

  SandboxPhase phase() const {
    std::lock_guard lock(mutex);
    return record.phase;
  }
  SandboxRecord Copy() const {
    std::lock_guard lock(mutex);
    return record;
  }
  SandboxInfo Info() const {
    std::lock_guard lock(mutex);
    return record.info;
  }
  void Touch() { last_used_ns = Clock::System().MonotonicNanos(); }
};

// Held by a call that needs the sandbox's processes to run.
class CallToken {
 public:
  explicit CallToken(std::shared_ptr<Sandbox> sandbox) : sandbox_(std::move(sandbox)) {
    std::lock_guard lock(sandbox_->mutex);
    ++sandbox_->calls_in_flight;
  }
  ~CallToken() {
    sandbox_->Touch();
    std::lock_guard lock(sandbox_->mutex);
    if (--sandbox_->calls_in_flight == 0) sandbox_->calls_done.notify_all();
  }
  CallToken(const CallToken&) = delete;
  CallToken& operator=(const CallToken&) = delete;

 private:
  std::shared_ptr<Sandbox> sandbox_;
};

// "sandbox sb-1 has ended (OOM): ..." as FAILED_PRECONDITION.
Status EndedError(const SandboxInfo& info);

}  // namespace esker
