// Calls on commands that exist: look, follow, signal, feed, resize; and taking them over from init.
#include <signal.h>

#include "base/log.h"
#include "node_impl.h"

namespace esker {
namespace {

class Subscription final : public CommandSubscription {
 public:
  Subscription(std::shared_ptr<EventLoop> loop, std::shared_ptr<Command> command,
               std::shared_ptr<Follower> follower)
      : loop_(std::move(loop)), command_(std::move(command)), follower_(std::move(follower)) {}
  ~Subscription() override {
    {
      std::lock_guard lock(follower_->mutex);
      follower_->observer = nullptr;
    }
    loop_->Post([command = command_, follower = follower_] { command->Detach(follower); });
  }
  void Ready() override {
    loop_->Post([command = command_, follower = follower_] { command->FollowerReady(follower); });
  }

 private:
  std::shared_ptr<EventLoop> loop_;
  std::shared_ptr<Command> command_;
  std::shared_ptr<Follower> follower_;
};

}  // namespace

Result<CommandInfo> NodeImpl::GetCommand(const std::string& sandbox, const std::string& command) {
  ESKER_ASSIGN_OR_RETURN(SandboxPtr found, Find(sandbox));
  ESKER_ASSIGN_OR_RETURN(CommandPtr one, FindCommand(*found, command));
  return one->Info();
}

Result<std::vector<CommandInfo>> NodeImpl::ListCommands(const std::string& sandbox,
                                                        bool include_ended) {
  ESKER_ASSIGN_OR_RETURN(SandboxPtr found, Find(sandbox));
  std::vector<CommandInfo> list;
  std::lock_guard lock(found->mutex);
  for (const auto& [id, command] : found->commands) {
    CommandInfo info = command->Info();
    if (include_ended || info.status.state == InitCommandState::kRunning) {
      list.push_back(std::move(info));
    }
  }
  return list;
}

Result<std::unique_ptr<CommandSubscription>> NodeImpl::Attach(
    const std::string& sandbox, const std::string& command, uint64_t stdout_offset,
    uint64_t stderr_offset, bool want_output, CommandObserver* observer) {
  ESKER_ASSIGN_OR_RETURN(SandboxPtr found, Find(sandbox));
  ESKER_ASSIGN_OR_RETURN(CommandPtr one, FindCommand(*found, command));
  CommandInfo info = one->Info();
  if (want_output && (stdout_offset > info.stdout_bytes || stderr_offset > info.stderr_bytes)) {
    return OutOfRangeError("command " + command + " has written " +
                           std::to_string(info.stdout_bytes) + " and " +
                           std::to_string(info.stderr_bytes) + " bytes so far; offsets " +
                           std::to_string(stdout_offset) + " and " + std::to_string(stderr_offset) +
                           " are beyond that");
  }
  found->Touch();
  auto follower = std::make_shared<Follower>();
  follower->observer = observer;
  follower->want_output = want_output;
  follower->offset[0] = stdout_offset;
  follower->offset[1] = stderr_offset;
  loop_->Post([one, follower] { one->Attach(follower); });
  return std::unique_ptr<CommandSubscription>(
      std::make_unique<Subscription>(loop_, one, std::move(follower)));
}

void NodeImpl::SignalCommand(const std::string& sandbox, const std::string& command, int signal,
                             bool whole_tree, std::function<void(Result<bool>)> done) {
  if (signal < 0 || signal > 64) {
    return loop_->Post([done = std::move(done), signal] {
      done(InvalidArgumentError("no signal " + std::to_string(signal)));
    });
  }
  int number = signal == 0 || whole_tree ? SIGKILL : signal;
  loop_->Post([this, sandbox, command, number, whole_tree, done = std::move(done)] {
    Result<SandboxPtr> found = Find(sandbox);
    if (!found.ok()) return done(std::move(found).status());
    Result<CommandPtr> one = FindCommand(**found, command);
    if (!one.ok()) return done(std::move(one).status());
    // What has ended needs no signal, unless what it left behind is meant.
    if ((*one)->Ended() && !whole_tree) return done(false);
    if ((*one)->Ended() && !(*found)->gone.ok()) return done(false);
    bool running = !(*one)->Ended();
    auto signal_it = [this, command, number, whole_tree, running, done](Result<Reached> reached) {
      if (!reached.ok()) return done(std::move(reached).status());
      auto token = std::make_shared<CallToken>(reached->sandbox);
      reached->init->Signal(
          command, number, whole_tree,
          [this, token, sandbox = reached->sandbox, running, done](Status status) {
            if (status.ok()) return done(running);
            if (status.code() == Code::kNotFound) return done(false);
            Explain(sandbox, status, [done](Status why) { done(std::move(why)); });
          });
    };
    ReachOnLoop(*found, true, std::move(signal_it));
  });
}

void NodeImpl::SendStdin(const std::string& sandbox, const std::string& command, std::string data,
                         bool eof, std::optional<uint64_t> offset,
                         std::function<void(Result<uint64_t>)> done) {
  Reach(sandbox, [this, command, data = std::move(data), eof, offset,
                  done = std::move(done)](Result<Reached> reached) {
    if (!reached.ok()) return done(std::move(reached).status());
    Result<CommandPtr> one = FindCommand(*reached->sandbox, command);
    if (!one.ok()) return done(std::move(one).status());
    (*one)->SendStdin(data, eof, offset, done);
  });
}

void NodeImpl::ResizeCommand(const std::string& sandbox, const std::string& command, uint16_t rows,
                             uint16_t cols, std::function<void(Status)> done) {
  Reach(sandbox, [this, command, rows, cols, done = std::move(done)](Result<Reached> reached) {
    if (!reached.ok()) return done(std::move(reached).status());
    Result<CommandPtr> one = FindCommand(*reached->sandbox, command);
    if (!one.ok()) return done(std::move(one).status());
    if (!(*one)->Info().spec.pty) {
      return done(FailedPreconditionError("command " + command + " has no terminal"));
    }
    auto token = std::make_shared<CallToken>(reached->sandbox);
    reached->init->Resize(command, rows, cols,
                          [this, token, sandbox = reached->sandbox, done](Status status) {
                            Explain(sandbox, status, done);
                          });
  });
}

// --- taking over --------------------------------------------------------------------------------

void NodeImpl::TakeInventory(const SandboxPtr& sandbox, const InitClient::Inventory& inventory) {
  std::map<std::string, CommandPtr> missing;
  {
    std::lock_guard lock(sandbox->mutex);
    for (const auto& [id, command] : sandbox->commands) {
      if (!command->Ended()) missing[id] = command;
    }
  }
  for (const InitCommandStatus& status : inventory.commands) {
    missing.erase(status.command_id);
    Result<CommandPtr> command = FindCommand(*sandbox, status.command_id);
    if (command.ok()) {
      TakeOver(sandbox, *command, status);
      continue;
    }
    // Intents are recorded before a start, so this was dropped: its caller was told so.
    LogWarning("unknown_command", {{"sandbox", sandbox->id}, {"command", status.command_id}});
    sandbox->init->Signal(status.command_id, SIGKILL, true, [](Status) {});
    sandbox->init->Acknowledge(status.command_id);
  }
  // Only the intent came to be: init never heard of it, and a repeated request may start it.
  for (const auto& [id, command] : missing) {
    EraseCommand(*sandbox, *command);
  }
}

void NodeImpl::TakeOver(const SandboxPtr& sandbox, const CommandPtr& command,
                        const InitCommandStatus& status) {
  ++sandbox->open_commands;
  ++open_commands_;
  sandbox->init->Handover(
      status.command_id, [this, sandbox, command, status](Result<InitCommandPipes> pipes) {
        if (!pipes.ok() && pipes.status().code() == Code::kUnavailable) return;
        if (!pipes.ok()) {
          LogError("handover", {{"sandbox", sandbox->id},
                                {"command", command->id()},
                                {"cause", pipes.status().ToString()}});
        }
        InitCommandPipes ends;
        if (pipes.ok()) ends = std::move(*pipes);
        Status begun = command->Begin(status, std::move(ends));
        if (!begun.ok()) {
          LogError("take_over", {{"command", command->id()}, {"cause", begun.ToString()}});
        }
      });
}

}  // namespace esker
