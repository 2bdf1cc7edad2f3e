// The end of a sandbox: deleted, expired, died, or never come to life.
#include <sys/wait.h>

#include <chrono>
#include <thread>

#include "base/failpoint.h"
#include "base/io.h"
#include "base/log.h"
#include "base/scope_guard.h"
#include "node_impl.h"

namespace esker {
namespace {

constexpr int kKillTimeoutMs = 10'000;
constexpr int64_t kInitEndTimeoutMs = 10'000;
constexpr int64_t kReapTimeoutMs = 30'000;

std::string DescribeWaitStatus(int status) {
  if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
  return "exited with code " + std::to_string(WEXITSTATUS(status));
}

bool IsMissing(const Status& status) { return status.code() == Code::kNotFound; }

}  // namespace

Result<bool> NodeImpl::Delete(const std::string& id) {
  SandboxPtr sandbox = FindOrNull(id);
  if (sandbox == nullptr) return NotFoundError("no sandbox " + id + " on this node");
  sandbox->cancelled = true;
  ESKER_ASSIGN_OR_RETURN(Strand::Turn turn, EnterStrand(*sandbox));
  return End(sandbox, "DELETED", "");
}

Result<bool> NodeImpl::End(const SandboxPtr& sandbox, const std::string& reason,
                           const std::string& message) {
  SandboxRecord before = sandbox->Copy();
  if (before.phase == SandboxPhase::kEnded) return false;
  // An end that was begun before (and broke off) keeps its first reason.
  bool begun = before.phase == SandboxPhase::kEnding;
  if (!begun) {
    auto ending = [&](SandboxRecord& r) {
      r.phase = SandboxPhase::kEnding;
      r.info.end_reason = reason;
      r.info.end_message = message;
    };
    // For a restart of this process; should the machine go, the sandbox goes with it.
    ESKER_RETURN_IF_ERROR(
        Record(*sandbox, ending, "ENDING", reason, {}, NodeDb::Durability::kSurvivesProcess));
  }
  ESKER_FAILPOINT("node.delete.ending");
  SandboxInfo info = sandbox->Info();
  bool commands_open = false;
  OnLoop([&] {
    sandbox->gone = EndedError(info);
    sandbox->init.reset();  // calls in flight fail, and Explain gives them the reason
    std::vector<std::function<void(Status)>> waiting = std::move(sandbox->told_when_gone);
    sandbox->told_when_gone.clear();
    for (auto& tell : waiting) tell(sandbox->gone);
    std::lock_guard lock(sandbox->mutex);
    for (const auto& [id, command] : sandbox->commands) {
      commands_open = commands_open || command->has_pipes() || !command->Ended();
    }
  });
  Status killed = KillProcesses(*sandbox);
  if (!killed.ok()) {
    // It stays "ending", holds its range, and housekeeping tries again.
    sandbox->end_posted = false;
    return std::move(killed).Wrap("end sandbox " + sandbox->id);
  }
  if (commands_open) FinishCommands(sandbox, "SANDBOX_ENDED: " + info.end_reason);
  ESKER_FAILPOINT("node.delete.torn_down");
  DbBatch batch;
  bool failed_create = info.end_reason == "CREATE_FAILED";
  for (const std::string& key : before.request_keys) {
    // The next call under the same key tries again.
    if (failed_create && !key.empty()) batch.Delete(key);
  }
  auto ended = [&](SandboxRecord& r) {
    r.phase = SandboxPhase::kEnded;
    r.info.state = SandboxState::kEnded;
    r.info.ended_ns = WallNow();
    r.init = {};
  };
  std::string detail = info.end_reason;
  if (!info.end_message.empty()) detail += ": " + info.end_message;
  ESKER_RETURN_IF_ERROR(Record(*sandbox, ended, "ENDED", detail, std::move(batch)));
  ESKER_FAILPOINT("node.delete.ended");
  sandbox->lease.reset();
  profiler_->Ended(sandbox->id);
  counters_.SandboxEnded(info.end_reason);
  {
    std::lock_guard lock(mutex_);
    --live_;
    leftovers_[sandbox->id] = sandbox;
  }
  ReapLater(sandbox);
  return true;
}

Status NodeImpl::KillProcesses(Sandbox& sandbox) {
  // PID 1 ends when all others of its namespace have.
  ProcessIdentity identity = sandbox.Copy().init;
  Result<Process> init = NotFoundError("");
  if (identity.pid > 0) init = Process::Open(identity);
  Status killed = cgroups_->KillAll(sandbox.id, kKillTimeoutMs, init.ok() ? init->pidfd() : -1);
  if (killed.ok() || !IsMissing(killed)) return killed;
  if (!sandbox.with_keeper) return OkStatus();
  // Without a cgroup the keeper's word is the proof; one that is gone has taken it along.
  Status ended = WaitInitEnd(sandbox, kInitEndTimeoutMs);
  return ended.ok() || !keeper()->BlobServerPid().ok() ? OkStatus() : ended;
}

// --- what is left of it -------------------------------------------------------------------------

void NodeImpl::ReapLater(const SandboxPtr& sandbox) {
  if (!reaper_->Submit([this, sandbox] { Reap(sandbox); }).ok()) Reap(sandbox);
}

void NodeImpl::Reap(const SandboxPtr& sandbox) {
  auto set = [&](Sandbox::Leftover now) {
    std::lock_guard lock(sandbox->mutex);
    sandbox->leftover = now;
  };
  {
    // Housekeeping may have asked for it once more meanwhile.
    std::lock_guard lock(sandbox->mutex);
    if (sandbox->leftover != Sandbox::Leftover::kThere) return;
    sandbox->leftover = Sandbox::Leftover::kBeingRemoved;
  }
  Status removed = cgroups_->Remove(sandbox->id);
  if (removed.ok()) removed = uppers_->Delete(sandbox->id);
  if (!removed.ok()) {
    // Housekeeping tries again; a restart removes it as a thing that nobody knows.
    LogError("reap_sandbox", {{"sandbox", sandbox->id}, {"cause", removed.ToString()}});
    set(Sandbox::Leftover::kThere);
    return;
  }
  if (std::exchange(sandbox->unleased, false)) {
    --unleased_;
    AllowGcWhenSafe();
  }
  if (std::exchange(sandbox->has_range, false)) ranges_.Free(sandbox->Copy().range);
  set(Sandbox::Leftover::kCleaned);
  Settle(sandbox);
}

void NodeImpl::Settle(const SandboxPtr& sandbox) {
  {
    std::lock_guard lock(sandbox->mutex);
    if (sandbox->leftover != Sandbox::Leftover::kCleaned) return;
    if (sandbox->with_keeper && !sandbox->init_status) return;
  }
  if (sandbox->with_keeper.exchange(false)) keeper()->AcknowledgeEndLater(sandbox->id);
  std::lock_guard lock(mutex_);
  leftovers_.erase(sandbox->id);
  reaped_.notify_all();
}

void NodeImpl::RetryReaping() {
  std::vector<SandboxPtr> failed;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, sandbox] : leftovers_) {
      std::lock_guard sandbox_lock(sandbox->mutex);
      if (sandbox->leftover == Sandbox::Leftover::kThere) failed.push_back(sandbox);
    }
  }
  for (const SandboxPtr& sandbox : failed) ReapLater(sandbox);
}

Status NodeImpl::AwaitReaped() {
  std::unique_lock lock(mutex_);
  // Those of now: others may end all the time.
  std::map<std::string, SandboxPtr> waited_for = leftovers_;
  auto all_gone = [&] {
    std::erase_if(waited_for, [&](const auto& each) { return !leftovers_.contains(each.first); });
    return waited_for.empty();
  };
  if (reaped_.wait_for(lock, std::chrono::milliseconds(kReapTimeoutMs), all_gone)) {
    return OkStatus();
  }
  return DeadlineExceededError("cgroups, volumes or processes of " +
                               std::to_string(waited_for.size()) +
                               " ended sandboxes could not be removed within 30 s; see the log");
}

Status NodeImpl::WaitInitEnd(Sandbox& sandbox, int64_t timeout_ms) {
  std::unique_lock lock(sandbox.mutex);
  bool ended = sandbox.init_ended.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                           [&] { return sandbox.init_status.has_value(); });
  if (ended) return OkStatus();
  return DeadlineExceededError("the keeper did not report the end of its PID 1 within " +
                               std::to_string(timeout_ms) + " ms");
}

void NodeImpl::FinishCommands(const SandboxPtr& sandbox, const std::string& reason) {
  OnLoop([&] {
    std::vector<CommandPtr> commands;
    {
      std::lock_guard lock(sandbox->mutex);
      for (const auto& [id, command] : sandbox->commands) commands.push_back(command);
    }
    for (const CommandPtr& command : commands) command->EndWithSandbox(reason);
  });
}

void NodeImpl::PostEnd(const SandboxPtr& sandbox, std::string reason, std::string message) {
  if (sandbox->end_posted.exchange(true)) return;
  sandbox->strand.Post([this, sandbox, reason = std::move(reason), message = std::move(message)] {
    Result<bool> ended = End(sandbox, reason, message);
    if (!ended.ok()) {
      LogError("end_sandbox", {{"sandbox", sandbox->id}, {"cause", ended.status().ToString()}});
      sandbox->end_posted = false;
    }
  });
}

// Keeper client's thread: must not wait for the keeper.
void NodeImpl::OnContainerEnd(const ContainerEnd& end) {
  SandboxPtr sandbox = FindOrNull(end.sandbox_id);
  if (sandbox == nullptr || closing_) return;
  {
    std::lock_guard lock(sandbox->mutex);
    sandbox->init_status = end.wait_status;
  }
  sandbox->init_ended.notify_all();
  SandboxPhase phase = sandbox->phase();
  if (phase == SandboxPhase::kEnded) Settle(sandbox);
  if (phase == SandboxPhase::kEnding || phase == SandboxPhase::kEnded) return;
  // While it is being created, the creation notices by itself; then this finds it ended.
  sandbox->strand.Post(
      [this, sandbox, status = end.wait_status] { EndAfterInit(sandbox, status); });
}

void NodeImpl::EndAfterInit(const SandboxPtr& sandbox, int wait_status) {
  SandboxPhase phase = sandbox->phase();
  if (phase == SandboxPhase::kEnding || phase == SandboxPhase::kEnded) return;
  sandbox->end_posted = true;
  Result<CgroupUsage> usage = cgroups_->GetUsage(sandbox->id);
  // The command that the kernel ended beside PID 1 may have been counted a moment ago.
  constexpr int64_t kMomentNs = 2'000'000'000;
  int64_t since_oom = Clock::System().MonotonicNanos() - sandbox->last_oom_ns;
  bool oom = usage.ok() && (usage->oom_kills > sandbox->oom_kills ||
                            (usage->oom_kills > 0 && since_oom < kMomentNs));
  std::string reason = oom ? "OOM" : "INIT_DIED";
  std::string message = "PID 1 was " + DescribeWaitStatus(wait_status);
  if (oom) {
    message = "the memory limit of " +
              std::to_string(sandbox->Info().resources.memory_bytes >> 20) +
              " MiB was hit and the kernel ended " + std::to_string(usage->oom_kills) +
              " processes; " + message;
  }
  Result<bool> ended = End(sandbox, reason, message);
  if (!ended.ok()) {
    LogError("end_sandbox", {{"sandbox", sandbox->id}, {"cause", ended.status().ToString()}});
    sandbox->end_posted = false;
  }
}

}  // namespace esker
