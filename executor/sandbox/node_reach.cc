// How calls get to init: resume first when paused, and an answer with the reason when it dies.
#include "base/log.h"
#include "node_impl.h"

namespace esker {
namespace {

constexpr int64_t kReasonTimeoutNs = 15'000'000'000;
constexpr int64_t kDeathTimeoutMs = 3'000;

}  // namespace

void NodeImpl::Reach(const std::string& id, std::function<void(Result<Reached>)> use) {
  loop_->Post([this, id, use = std::move(use)] {
    Result<SandboxPtr> sandbox = Find(id);
    if (!sandbox.ok()) return use(std::move(sandbox).status());
    ReachOnLoop(*sandbox, true, use);
  });
}

void NodeImpl::ReachOnLoop(const SandboxPtr& sandbox, bool may_resume,
                           std::function<void(Result<Reached>)> use) {
  if (!sandbox->gone.ok()) return use(sandbox->gone);
  if (closing_) return use(UnavailableError("the node is going away; the sandbox stays"));
  SandboxPhase phase = sandbox->phase();
  if (phase == SandboxPhase::kEnding || phase == SandboxPhase::kEnded) {
    return use(EndedError(sandbox->Info()));
  }
  if (phase == SandboxPhase::kCreating) {
    return use(UnavailableError("sandbox " + sandbox->id + " is still being created"));
  }
  if (phase == SandboxPhase::kRunning && !sandbox->pausing && sandbox->init != nullptr) {
    sandbox->Touch();
    return use(Reached{sandbox, sandbox->init.get()});
  }
  if (!may_resume) {
    return Explain(sandbox, UnavailableError("sandbox " + sandbox->id + " cannot be reached"),
                   [use](Status status) { use(std::move(status)); });
  }
  sandbox->strand.Post([this, sandbox, use = std::move(use)] {
    Status resumed = ResumeOnStrand(sandbox);
    loop_->Post([this, sandbox, use, resumed] {
      if (!resumed.ok()) return use(resumed);
      ReachOnLoop(sandbox, false, use);
    });
  });
}

void NodeImpl::Explain(const SandboxPtr& sandbox, const Status& status,
                       std::function<void(Status)> done) {
  if (status.ok() || status.code() != Code::kUnavailable) return done(status);
  if (!sandbox->gone.ok()) return done(sandbox->gone);
  if (closing_) return done(status);
  auto pending = std::make_shared<std::function<void(Status)>>(std::move(done));
  auto once = [pending](const Status& answer) {
    if (!*pending) return;
    std::function<void(Status)> call = std::exchange(*pending, nullptr);
    call(answer);
  };
  sandbox->told_when_gone.push_back(once);
  loop_->After(kReasonTimeoutNs, [once, status] { once(status); });
}

InitClient::Events NodeImpl::EventsFor(const SandboxPtr& sandbox) {
  std::weak_ptr<Sandbox> weak = sandbox;
  InitClient::Events events;
  events.on_exit = [this, weak](const InitCommandStatus& status) {
    SandboxPtr sandbox = weak.lock();
    if (sandbox == nullptr) return;
    Result<CommandPtr> command = FindCommand(*sandbox, status.command_id);
    if (command.ok()) return (*command)->OnExit(status);
    LogWarning("exit_of_unknown_command",
               {{"sandbox", sandbox->id}, {"command", status.command_id}});
    if (sandbox->init != nullptr) sandbox->init->Acknowledge(status.command_id);
  };
  events.on_disconnect = [this, weak](const Status& why) {
    if (SandboxPtr sandbox = weak.lock()) OnDisconnect(sandbox, why);
  };
  return events;
}

void NodeImpl::OnDisconnect(const SandboxPtr& sandbox, const Status& why) {
  if (closing_ || !sandbox->gone.ok()) return;
  // Not from inside its own callback.
  loop_->Post([sandbox] { sandbox->init.reset(); });
  sandbox->strand.Post([this, sandbox, why] {
    SandboxPhase phase = sandbox->phase();
    if (phase == SandboxPhase::kEnding || phase == SandboxPhase::kEnded) return;
    // Usually PID 1 is gone; the keeper's word on it has the better reason.
    if (WaitInitEnd(*sandbox, kDeathTimeoutMs).ok()) {
      int status;
      {
        std::lock_guard lock(sandbox->mutex);
        status = *sandbox->init_status;
      }
      return EndAfterInit(sandbox, status);
    }
    Result<bool> ended =
        End(sandbox, "INIT_DIED", "the connection to its init was lost: " + why.message());
    if (!ended.ok()) {
      LogError("end_sandbox", {{"sandbox", sandbox->id}, {"cause", ended.status().ToString()}});
    }
  });
}

void NodeImpl::File(const std::string& sandbox, const InitFileRequest& request, UniqueFd stream,
                    std::function<void(Result<InitFileResult>)> done) {
  auto fd = std::make_shared<UniqueFd>(std::move(stream));
  Reach(sandbox, [this, request, fd, done = std::move(done)](Result<Reached> reached) {
    if (!reached.ok()) return done(std::move(reached).status());
    InitFileRequest call = request;
    if (call.user.empty()) call.user = reached->sandbox->Info().config.user;
    auto token = std::make_shared<CallToken>(reached->sandbox);
    reached->init->File(
        call, fd->get(),
        [this, token, sandbox = reached->sandbox, done](Result<InitFileResult> result) {
          if (result.ok()) return done(std::move(result));
          Explain(sandbox, result.status(), [done](Status status) { done(std::move(status)); });
        });
    fd->reset();
  });
}

}  // namespace esker
