#include "command_service.h"

#include <signal.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "convert.h"

namespace esker::gateway {
namespace {

// Follows one command to one client. Each event is one write; the next output is asked for when the
// last write is done, so a slow client costs one buffer, and the command's log holds the rest.
//
// Owns itself until OnDone; a start that is still under way then keeps it a little longer. Node
// callbacks come on the node's loop thread, gRPC's on its own threads; mutex_ is not held while
// calling into the node.
class CommandStream final : public grpc::ServerWriteReactor<v1::CommandEvent>,
                            public CommandObserver {
 public:
  static CommandStream* Make(Services& services, grpc::CallbackServerContext* context) {
    std::shared_ptr<CommandStream> stream(new CommandStream(services, context));
    stream->self_ = stream;
    return stream.get();
  }

  void Fail(const Status& status, Noun noun = "COMMAND") {
    std::lock_guard lock(mutex_);
    if (finished_) return;  // then the context may be gone too
    finished_ = true;
    Finish(ToGrpc(*context_, status, noun));
  }

  void Run(const v1::StartCommandRequest& request) {
    sandbox_ = request.sandbox_id();
    kill_on_cancel_ = request.kill_on_disconnect();
    auto started = [this, keep = self_](Result<CommandInfo> info) {
      if (!info.ok()) return Fail(info.status());
      {
        std::lock_guard lock(mutex_);
        command_ = info->id;
      }
      if (cancelled_.load()) KillIfAsked();
      v1::CommandEvent event;
      *event.mutable_started() = ToProto(*info);
      Write(std::move(event));  // OnWriteDone then follows the output
    };
    services_.node.StartCommand(sandbox_, FromProto(request), std::move(started));
  }

  void Attach(const v1::AttachCommandRequest& request) {
    sandbox_ = request.sandbox_id();
    command_ = request.command_id();
    stdout_offset_ = request.stdout_offset();
    stderr_offset_ = request.stderr_offset();
    want_output_ = !request.no_output();
    Result<CommandInfo> info = services_.node.GetCommand(sandbox_, command_);
    if (!info.ok()) return Fail(info.status());
    v1::CommandEvent event;
    *event.mutable_started() = ToProto(*info);
    Write(std::move(event));
  }

  // --- from the node
  // ------------------------------------------------------------------------------
  void OnOutput(int stream, uint64_t offset, std::string data, uint64_t lost) override {
    v1::CommandEvent event;
    v1::CommandEvent::Output* output = event.mutable_output();
    output->set_stream(static_cast<v1::Stream>(stream));
    output->set_offset(offset);
    output->set_data(std::move(data));
    output->set_lost(lost);
    Write(std::move(event));
  }

  void OnExit(const CommandInfo& info) override {
    v1::CommandEvent event;
    *event.mutable_exited() = ToProto(info);
    std::lock_guard lock(mutex_);
    if (finished_) return;
    if (writing_) {
      last_ = std::move(event);
      return;
    }
    FinishWith(std::move(event));
  }

  // --- from gRPC
  // -----------------------------------------------------------------------------------
  void OnWriteDone(bool ok) override {
    std::unique_lock lock(mutex_);
    writing_ = false;
    if (finished_) return;
    if (!ok) {
      lock.unlock();
      return FinishOnce(grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone"));
    }
    if (last_) return FinishWith(std::move(*last_));
    if (!following_) {
      following_ = true;
      lock.unlock();
      return Follow();
    }
    CommandSubscription* subscription = subscription_.get();
    if (subscription == nullptr) {
      ready_owed_ = true;  // this write was quicker than Follow
      return;
    }
    lock.unlock();
    subscription->Ready();
  }

  void OnCancel() override {
    cancelled_.store(true);
    KillIfAsked();
    FinishOnce(grpc::Status(grpc::StatusCode::CANCELLED, "cancelled by the client"));
  }

  void OnDone() override {
    subscription_.reset();  // after this no node callback comes
    std::shared_ptr<CommandStream> last = std::move(self_);
  }

 private:
  CommandStream(Services& services, grpc::CallbackServerContext* context)
      : services_(services), context_(context) {}

  void Follow() {
    Result<std::unique_ptr<CommandSubscription>> subscription = services_.node.Attach(
        sandbox_, command_, stdout_offset_, stderr_offset_, want_output_, this);
    if (!subscription.ok()) return Fail(subscription.status());
    CommandSubscription* stored = subscription->get();
    bool owed;
    {
      std::lock_guard lock(mutex_);
      subscription_ = std::move(*subscription);
      owed = std::exchange(ready_owed_, false);
    }
    if (owed) stored->Ready();
  }

  void Write(v1::CommandEvent event) {
    std::lock_guard lock(mutex_);
    if (finished_) return;
    writing_ = true;
    event_ = std::move(event);
    StartWrite(&event_);
  }

  // Needs mutex_.
  void FinishWith(v1::CommandEvent event) {
    finished_ = true;
    event_ = std::move(event);
    StartWriteAndFinish(&event_, grpc::WriteOptions(), grpc::Status::OK);
  }

  void FinishOnce(grpc::Status status) {
    std::lock_guard lock(mutex_);
    if (finished_) return;
    finished_ = true;
    Finish(std::move(status));
  }

  void KillIfAsked() {
    std::string command;
    {
      std::lock_guard lock(mutex_);
      command = command_;
    }
    if (!kill_on_cancel_ || command.empty()) return;
    services_.node.SignalCommand(sandbox_, command, SIGKILL, true, [](Result<bool>) {
      // The client is gone; whether the command still lived interests nobody.
    });
  }

  Services& services_;
  grpc::CallbackServerContext* const context_;  // valid until OnDone
  std::shared_ptr<CommandStream> self_;
  std::string sandbox_;
  uint64_t stdout_offset_ = 0, stderr_offset_ = 0;
  bool want_output_ = true;
  bool kill_on_cancel_ = false;
  std::atomic<bool> cancelled_{false};

  std::mutex mutex_;
  std::string command_;                                // guarded by mutex_
  std::unique_ptr<CommandSubscription> subscription_;  // guarded by mutex_
  v1::CommandEvent event_;                             // being written while writing_
  std::optional<v1::CommandEvent> last_;               // guarded by mutex_
  bool writing_ = false;                               // guarded by mutex_
  bool finished_ = false;                              // guarded by mutex_
  bool following_ = false;                             // guarded by mutex_
  bool ready_owed_ = false;                            // guarded by mutex_
};

}  // namespace

grpc::ServerWriteReactor<v1::CommandEvent>* CommandService::Run(
    grpc::CallbackServerContext* context, const v1::StartCommandRequest* request) {
  CommandStream* stream = CommandStream::Make(s_, context);
  Status allowed = s_.CheckSandbox(*context, request->sandbox_id());
  if (allowed.ok()) {
    stream->Run(*request);
  } else {
    stream->Fail(allowed, "SANDBOX");
  }
  return stream;
}

grpc::ServerWriteReactor<v1::CommandEvent>* CommandService::Attach(
    grpc::CallbackServerContext* context, const v1::AttachCommandRequest* request) {
  CommandStream* stream = CommandStream::Make(s_, context);
  Status allowed = s_.CheckSandbox(*context, request->sandbox_id());
  if (allowed.ok()) {
    stream->Attach(*request);
  } else {
    stream->Fail(allowed, "SANDBOX");
  }
  return stream;
}

// The calls below never block in the node, so they need no worker.

grpc::ServerUnaryReactor* CommandService::Start(grpc::CallbackServerContext* context,
                                                const v1::StartCommandRequest* request,
                                                v1::Command* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!s_.Admit(context, reactor, request->sandbox_id())) return reactor;
  s_.node.StartCommand(request->sandbox_id(), FromProto(*request), [=](Result<CommandInfo> info) {
    if (info.ok()) *response = ToProto(*info);
    reactor->Finish(ToGrpc(*context, info.status(), "COMMAND"));
  });
  return reactor;
}

grpc::ServerUnaryReactor* CommandService::Get(grpc::CallbackServerContext* context,
                                              const v1::GetCommandRequest* request,
                                              v1::Command* response) {
  return RunOnSandbox(
      s_, s_.quick, context, "COMMAND", request->sandbox_id(), [=, this]() -> Status {
        ESKER_ASSIGN_OR_RETURN(CommandInfo info,
                               s_.node.GetCommand(request->sandbox_id(), request->command_id()));
        *response = ToProto(info);
        return OkStatus();
      });
}

grpc::ServerUnaryReactor* CommandService::List(grpc::CallbackServerContext* context,
                                               const v1::ListCommandsRequest* request,
                                               v1::ListCommandsResponse* response) {
  return RunUnary(s_, s_.quick, context, "SANDBOX", [=, this](const Caller& caller) -> Status {
    ESKER_RETURN_IF_ERROR(s_.FindSandbox(caller, request->sandbox_id()).status());
    ESKER_ASSIGN_OR_RETURN(std::vector<CommandInfo> commands,
                           s_.node.ListCommands(request->sandbox_id(), request->include_ended()));
    for (const CommandInfo& command : commands) *response->add_commands() = ToProto(command);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* CommandService::Signal(grpc::CallbackServerContext* context,
                                                 const v1::SignalCommandRequest* request,
                                                 v1::SignalCommandResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!s_.Admit(context, reactor, request->sandbox_id())) return reactor;
  int signal = request->signal() == 0 ? SIGKILL : request->signal();
  s_.node.SignalCommand(request->sandbox_id(), request->command_id(), signal, request->whole_tree(),
                        [=](Result<bool> was_running) {
                          if (was_running.ok()) response->set_was_running(*was_running);
                          reactor->Finish(ToGrpc(*context, was_running.status(), "COMMAND"));
                        });
  return reactor;
}

grpc::ServerUnaryReactor* CommandService::SendStdin(grpc::CallbackServerContext* context,
                                                    const v1::SendStdinRequest* request,
                                                    v1::SendStdinResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!s_.Admit(context, reactor, request->sandbox_id())) return reactor;
  std::optional<uint64_t> offset;
  if (request->has_offset()) offset = request->offset();
  s_.node.SendStdin(request->sandbox_id(), request->command_id(), request->data(), request->eof(),
                    offset, [=](Result<uint64_t> accepted) {
                      if (accepted.ok()) response->set_accepted(*accepted);
                      reactor->Finish(ToGrpc(*context, accepted.status(), "COMMAND"));
                    });
  return reactor;
}

grpc::ServerUnaryReactor* CommandService::Resize(grpc::CallbackServerContext* context,
                                                 const v1::ResizeRequest* request,
                                                 v1::ResizeResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!s_.Admit(context, reactor, request->sandbox_id())) return reactor;
  s_.node.ResizeCommand(
      request->sandbox_id(), request->command_id(), static_cast<uint16_t>(request->pty().rows()),
      static_cast<uint16_t>(request->pty().cols()),
      [=](Status status) { reactor->Finish(ToGrpc(*context, status, "COMMAND")); });
  return reactor;
}

}  // namespace esker::gateway
