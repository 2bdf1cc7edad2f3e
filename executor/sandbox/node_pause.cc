// Pause and resume: every process frozen, memory given back, and on again.
#include <chrono>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/scope_guard.h"
#include "node_impl.h"

namespace esker {
namespace {

constexpr int kFreezeTimeoutMs = 5'000;
constexpr int kCallsTimeoutMs = 2'000;
constexpr int64_t kReconnectTimeoutMs = 10'000;

// Calls that came before the pause get their answers before it, if they are quick; a transfer that
// is not goes on when the sandbox is resumed.
void AwaitCalls(Sandbox& sandbox) {
  std::unique_lock lock(sandbox.mutex);
  sandbox.calls_done.wait_for(lock, std::chrono::milliseconds(kCallsTimeoutMs),
                              [&] { return sandbox.calls_in_flight == 0; });
}

}  // namespace

Result<PauseInfo> NodeImpl::Pause(const std::string& id) {
  ESKER_ASSIGN_OR_RETURN(SandboxPtr sandbox, Find(id));
  ESKER_ASSIGN_OR_RETURN(Strand::Turn turn, EnterStrand(*sandbox));
  SandboxRecord record = sandbox->Copy();
  if (record.phase == SandboxPhase::kEnded || record.phase == SandboxPhase::kEnding) {
    return EndedError(record.info);
  }
  PauseInfo pause;
  if (record.phase == SandboxPhase::kRunning) {
    OnLoop([&] { sandbox->pausing = true; });
    ScopeGuard go_on([&] { OnLoop([&] { sandbox->pausing = false; }); });
    AwaitCalls(*sandbox);
    ESKER_RETURN_IF_ERROR(cgroups_->Freeze(id, kFreezeTimeoutMs).Wrap("pause sandbox " + id));
    // A crash here leaves a frozen sandbox recorded as running: adoption thaws it.
    ScopeGuard thaw([&] {
      Status status = cgroups_->Thaw(id);
      if (!status.ok()) LogError("thaw", {{"sandbox", id}, {"cause", status.ToString()}});
    });
    ESKER_FAILPOINT("node.pause.frozen");
    auto paused = [](SandboxRecord& r) {
      r.phase = SandboxPhase::kPaused;
      r.info.state = SandboxState::kPaused;
    };
    ESKER_RETURN_IF_ERROR(Record(*sandbox, paused, "PAUSED", ""));
    thaw.Dismiss();
    ESKER_FAILPOINT("node.pause.recorded");
    Result<uint64_t> freed = cgroups_->ReclaimMemory(id);
    if (freed.ok()) {
      pause.bytes_freed = *freed;
    } else {
      // It is paused; what it keeps is reported as it is.
      LogWarning("reclaim_memory", {{"sandbox", id}, {"cause", freed.status().ToString()}});
    }
  }
  ESKER_ASSIGN_OR_RETURN(CgroupUsage usage, cgroups_->GetUsage(id));
  pause.bytes_kept = usage.memory_bytes;
  pause.info = sandbox->Info();
  return pause;
}

Result<SandboxInfo> NodeImpl::Resume(const std::string& id) {
  ESKER_ASSIGN_OR_RETURN(SandboxPtr sandbox, Find(id));
  ESKER_ASSIGN_OR_RETURN(Strand::Turn turn, EnterStrand(*sandbox));
  ESKER_RETURN_IF_ERROR(ResumeOnStrand(sandbox));
  return sandbox->Info();
}

Status NodeImpl::ResumeOnStrand(const SandboxPtr& sandbox) {
  SandboxRecord record = sandbox->Copy();
  switch (record.phase) {
    case SandboxPhase::kEnding:
    case SandboxPhase::kEnded:
      return EndedError(record.info);
    case SandboxPhase::kCreating:
      return UnavailableError("sandbox " + sandbox->id + " is still being created");
    case SandboxPhase::kRunning:
      return OkStatus();
    case SandboxPhase::kPaused:
      break;
  }
  // Recorded before it is done: a crash in between leaves it frozen and recorded as running, which
  // adoption sets right by thawing.
  auto running = [](SandboxRecord& r) {
    r.phase = SandboxPhase::kRunning;
    r.info.state = SandboxState::kRunning;
  };
  ESKER_RETURN_IF_ERROR(Record(*sandbox, running, "RESUMED", ""));
  ESKER_FAILPOINT("node.resume.recorded");
  ESKER_RETURN_IF_ERROR(cgroups_->Thaw(sandbox->id).Wrap("resume sandbox " + sandbox->id));
  sandbox->Touch();
  bool connected = false;
  OnLoop([&] { connected = sandbox->init != nullptr; });
  if (connected) return OkStatus();
  // Adopted while it was paused: its init could not answer then.
  int64_t deadline = Clock::System().MonotonicNanos() + kReconnectTimeoutMs * 1'000'000;
  return ConnectInit(sandbox, deadline);
}

Status NodeImpl::FreezeForSnapshot(Sandbox& sandbox, bool* frozen) {
  *frozen = false;
  if (sandbox.phase() == SandboxPhase::kPaused) return OkStatus();
  ESKER_RETURN_IF_ERROR(cgroups_->Freeze(sandbox.id, kFreezeTimeoutMs));
  *frozen = true;
  return OkStatus();
}

}  // namespace esker
