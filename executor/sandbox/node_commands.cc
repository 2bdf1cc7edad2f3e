// Commands: started once, followed by any number, looked at for as long as they are kept.
#include <signal.h>

#include <algorithm>

#include "base/failpoint.h"
#include "base/id.h"
#include "base/io.h"
#include "base/log.h"
#include "node_impl.h"

namespace esker {
namespace {

// Descriptors: a running command holds five.
constexpr size_t kOpenPerSandbox = 512;
constexpr size_t kOpenPerNode = 3'000;
constexpr size_t kEndedKept = 1'000;
constexpr size_t kTrimEvery = 64;
constexpr uint64_t kEndedLogBytes = 256u << 20;
constexpr size_t kMaxSpecBytes = 128u << 10;
constexpr char kDefaultPath[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

Status CheckSpec(const CommandSpec& spec) {
  if (spec.argv.empty() == spec.shell.empty()) {
    return InvalidArgumentError("a command is either a list of arguments or a line for the shell");
  }
  size_t bytes = spec.shell.size() + spec.cwd.size() + spec.user.size() + spec.tag.size();
  for (const std::string& arg : spec.argv) {
    if (arg.find('\0') != arg.npos) return InvalidArgumentError("an argument contains a NUL");
    bytes += arg.size() + 1;
  }
  for (const auto& [name, value] : spec.envs) {
    if (name.empty() || name.find('=') != name.npos || (name + value).find('\0') != name.npos) {
      return InvalidArgumentError("environment variable '" + name +
                                  "': no empty name, no '=' in it, no NUL anywhere");
    }
    bytes += name.size() + value.size() + 2;
  }
  if (bytes > kMaxSpecBytes) {
    return InvalidArgumentError("the command has " + std::to_string(bytes) +
                                " bytes of arguments and environment, more than " +
                                std::to_string(kMaxSpecBytes) + "; put them in a file");
  }
  if (spec.shell.find('\0') != spec.shell.npos) {
    return InvalidArgumentError("the shell line contains a NUL");
  }
  if (spec.timeout_ms < 0) return InvalidArgumentError("timeout must not be negative");
  if (spec.request_id.size() > 256) {
    return InvalidArgumentError("a request id has at most 256 bytes");
  }
  return OkStatus();
}

}  // namespace

InitCommandSpec NodeImpl::ToInitSpec(const SandboxInfo& sandbox, const CommandInfo& command) const {
  const CommandSpec& spec = command.spec;
  std::map<std::string, std::string> env;
  for (const std::string& entry : sandbox.config.env) {
    size_t equals = entry.find('=');
    if (equals != entry.npos && equals != 0)
      env[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  for (const auto& [name, value] : sandbox.envs) env[name] = value;
  for (const auto& [name, value] : spec.envs) env[name] = value;
  env.emplace("PATH", kDefaultPath);
  InitCommandSpec out;
  out.command_id = command.id;
  out.argv = spec.argv;
  out.shell = spec.shell;
  for (const auto& [name, value] : env) out.env.push_back(name + "=" + value);
  out.cwd = spec.cwd.empty() ? sandbox.config.working_dir : spec.cwd;
  out.user = spec.user.empty() ? sandbox.config.user : spec.user;
  out.want_stdin = spec.want_stdin || spec.pty;
  out.pty = spec.pty;
  out.rows = spec.rows;
  out.cols = spec.cols;
  out.timeout_ms = spec.timeout_ms;
  return out;
}

Result<NodeImpl::CommandPtr> NodeImpl::FindCommand(const Sandbox& sandbox,
                                                   const std::string& command) const {
  std::lock_guard lock(sandbox.mutex);
  auto it = sandbox.commands.find(command);
  if (it == sandbox.commands.end()) {
    return NotFoundError("no command " + command + " in sandbox " + sandbox.id);
  }
  return it->second;
}

// --- starting -----------------------------------------------------------------------------------

void NodeImpl::StartCommand(const std::string& sandbox, const CommandSpec& spec,
                            std::function<void(Result<CommandInfo>)> done) {
  loop_->Post([this, sandbox, spec, done = std::move(done)] {
    Status checked = CheckSpec(spec);
    if (!checked.ok()) return done(checked);
    Result<SandboxPtr> found = Find(sandbox);
    if (!found.ok()) return done(std::move(found).status());
    StartNew(*found, spec, done);
  });
}

void NodeImpl::StartNew(const SandboxPtr& sandbox, const CommandSpec& spec,
                        std::function<void(Result<CommandInfo>)> done) {
  if (!spec.request_id.empty()) {
    CommandPtr known;
    {
      std::lock_guard lock(sandbox->mutex);
      auto it = sandbox->command_of_request.find(spec.request_id);
      if (it != sandbox->command_of_request.end()) known = sandbox->commands[it->second];
    }
    if (known != nullptr) {
      if (HashOf(known->Info().spec) != HashOf(spec)) {
        return done(AlreadyExistsError("request id " + spec.request_id +
                                       " was used for another command; use a new one"));
      }
      auto starting = sandbox->launching.find(known->id());
      if (starting == sandbox->launching.end()) return done(known->Info());
      starting->second.push_back(std::move(done));
      return;
    }
  }
  // A repetition that comes while this one waits for the sandbox to resume looks again above.
  bool direct = sandbox->gone.ok() && sandbox->phase() == SandboxPhase::kRunning &&
                !sandbox->pausing && sandbox->init != nullptr;
  if (!direct) {
    return ReachOnLoop(sandbox, true, [this, spec, done](Result<Reached> reached) {
      if (!reached.ok()) return done(std::move(reached).status());
      StartNew(reached->sandbox, spec, done);
    });
  }
  Result<CommandPtr> command = NewCommand(sandbox, spec);
  if (!command.ok()) return done(std::move(command).status());
  sandbox->launching[(*command)->id()].push_back(std::move(done));
  LaunchCommand(sandbox, *command);
}

Result<NodeImpl::CommandPtr> NodeImpl::NewCommand(const SandboxPtr& sandbox,
                                                  const CommandSpec& spec) {
  if (sandbox->open_commands >= kOpenPerSandbox || open_commands_ >= kOpenPerNode) {
    bool own = sandbox->open_commands >= kOpenPerSandbox;
    return ResourceExhaustedError(std::string(own ? "the sandbox" : "the node") + " has " +
                                  std::to_string(own ? kOpenPerSandbox : kOpenPerNode) +
                                  " running commands, the most it may have");
  }
  CommandRecord record;
  record.info.sandbox_id = sandbox->id;
  record.info.id = RandomId("cmd");
  record.info.spec = spec;
  record.info.status.command_id = record.info.id;
  std::string prefix = LogDirectory(sandbox->id) + "/" + record.info.id;
  auto command = std::make_shared<Command>(*this, std::move(record), prefix);
  command->oom_kills_at_start = sandbox->oom_kills;
  ++sandbox->open_commands;
  ++open_commands_;
  std::lock_guard lock(sandbox->mutex);
  sandbox->commands[command->id()] = command;
  if (!spec.request_id.empty()) sandbox->command_of_request[spec.request_id] = command->id();
  return command;
}

void NodeImpl::LaunchCommand(const SandboxPtr& sandbox, const CommandPtr& command) {
  auto token = std::make_shared<CallToken>(sandbox);
  // The intent first: whatever happens next, the same request never starts a second one.
  Persist(command, false, [this, sandbox, command, token](Status written) {
    if (written.ok()) written = HitFailPoint("node.command.recorded");
    if (!written.ok()) return OnStarted(sandbox, command, written);
    if (sandbox->init == nullptr) {
      return OnStarted(sandbox, command, UnavailableError("the sandbox cannot be reached"));
    }
    sandbox->init->Start(ToInitSpec(sandbox->Info(), command->Info()),
                         [this, sandbox, command, token](Result<InitClient::Started> started) {
                           OnStarted(sandbox, command, std::move(started));
                         });
  });
}

void NodeImpl::OnStarted(const SandboxPtr& sandbox, const CommandPtr& command,
                         Result<InitClient::Started> started) {
  if (!started.ok()) {
    ++counters_.commands_not_started;
    // When the connection broke nobody knows whether it ran: it stays, and ends with the sandbox.
    bool unknown = started.status().code() == Code::kUnavailable;
    if (!unknown) DropCommand(*sandbox, *command);
    if (unknown && !sandbox->gone.ok()) {
      command->EndWithSandbox("SANDBOX_ENDED: " + sandbox->Info().end_reason);
    }
    return Explain(sandbox, started.status(), [this, sandbox, command](Status status) {
      Launched(sandbox, command, std::move(status));
    });
  }
  ++counters_.commands_started;
  profiler_->CommandStarted(sandbox->id);
  Status failpoint = HitFailPoint("node.command.started");
  Status begun = command->Begin(started->status, std::move(started->pipes));
  if (!begun.ok() || !failpoint.ok()) {
    sandbox->init->Signal(command->id(), SIGKILL, true, [](Status) {});
    return Launched(sandbox, command, begun.ok() ? failpoint : begun);
  }
  Launched(sandbox, command, command->Info());
}

void NodeImpl::Launched(const SandboxPtr& sandbox, const CommandPtr& command,
                        const Result<CommandInfo>& result) {
  auto it = sandbox->launching.find(command->id());
  if (it == sandbox->launching.end()) return;
  auto waiting = std::move(it->second);
  sandbox->launching.erase(it);
  for (auto& done : waiting) done(result);
}

// --- what commands ask of the node
// ----------------------------------------------------------------

void NodeImpl::Persist(const std::shared_ptr<Command>& command, bool exited,
                       std::function<void(Status)> done) {
  if (exited) counters_.CommandEnded(command->Info().status);
  SandboxPtr sandbox = FindOrNull(command->sandbox_id());
  auto prepare = [this, command, sandbox, exited](DbBatch& batch) {
    if (exited && sandbox != nullptr) {
      Result<uint64_t> kills = cgroups_->CountOomKills(sandbox->id);
      if (kills.ok() && *kills > command->oom_kills_at_start) command->SetOomKilled();
      if (kills.ok() && *kills > sandbox->oom_kills) {
        sandbox->oom_kills = *kills;
        sandbox->last_oom_ns = Clock::System().MonotonicNanos();
        AddEvent(*sandbox, batch, "OOM_KILL", "total=" + std::to_string(*kills));
      }
    }
    CommandRecord record = command->Record();
    if (sandbox != nullptr && exited) {
      AddEvent(*sandbox, batch, "COMMAND_ENDED",
               record.info.id + " exit_code=" + std::to_string(record.info.status.exit_code));
    } else if (sandbox != nullptr && !record.started) {
      AddEvent(*sandbox, batch, "COMMAND_STARTED", record.info.id);
    }
    batch.Put(CommandKey(record.info.sandbox_id, record.info.id), record.Serialise());
  };
  writer_->Submit(prepare, [this, done = std::move(done)](Status status) {
    loop_->Post([done, status] { done(status); });
  });
}

void NodeImpl::CloseStdin(const Command& command) {
  SandboxPtr sandbox = FindOrNull(command.sandbox_id());
  if (sandbox == nullptr || sandbox->init == nullptr) return;
  sandbox->init->CloseStdin(command.id(), [id = command.id()](Status status) {
    if (!status.ok() && status.code() != Code::kNotFound && status.code() != Code::kUnavailable) {
      LogWarning("close_stdin", {{"command", id}, {"cause", status.ToString()}});
    }
  });
}

void NodeImpl::Forget(const Command& command) {
  SandboxPtr sandbox = FindOrNull(command.sandbox_id());
  if (sandbox == nullptr) return;
  CloseCommand(*sandbox);
  if (sandbox->init != nullptr) sandbox->init->Acknowledge(command.id());
  if (++sandbox->forgotten_commands % kTrimEvery == 0 && !closing_) TrimCommands(*sandbox);
}

void NodeImpl::CloseCommand(Sandbox& sandbox) {
  if (sandbox.open_commands == 0) return;
  --sandbox.open_commands;
  --open_commands_;
}

void NodeImpl::DropCommand(Sandbox& sandbox, const Command& command) {
  CloseCommand(sandbox);
  EraseCommand(sandbox, command);
}

void NodeImpl::EraseCommand(Sandbox& sandbox, const Command& command) {
  std::string id = command.id(), key = CommandKey(sandbox.id, id);
  {
    std::lock_guard lock(sandbox.mutex);
    sandbox.command_of_request.erase(command.Info().spec.request_id);
    sandbox.commands.erase(id);
  }
  writer_->Submit([key](DbBatch& batch) { batch.Delete(key); }, nullptr);
}

// Ended commands beyond what is kept go, oldest first; their logs go before they do.
void NodeImpl::TrimCommands(Sandbox& sandbox) {
  std::vector<std::pair<int64_t, CommandPtr>> ended;
  {
    std::lock_guard lock(sandbox.mutex);
    for (const auto& [id, command] : sandbox.commands) {
      if (command->Ended() && !command->has_pipes()) {
        ended.emplace_back(command->Info().status.ended_ns, command);
      }
    }
  }
  std::sort(ended.begin(), ended.end(), [](auto& a, auto& b) { return a.first > b.first; });
  uint64_t bytes = 0;
  std::vector<std::string> logs;
  for (size_t i = 0; i < ended.size(); ++i) {
    const CommandPtr& command = ended[i].second;
    CommandInfo info = command->Info();
    uint64_t limit = info.spec.output_limit == 0 ? 64u << 20 : info.spec.output_limit;
    bytes += std::min(info.stdout_bytes, limit) + std::min(info.stderr_bytes, limit);
    bool drop = i >= kEndedKept;
    if (!drop && bytes <= kEndedLogBytes) continue;
    std::string prefix = LogDirectory(sandbox.id) + "/" + command->id();
    logs.push_back(prefix + ".out");
    logs.push_back(prefix + ".err");
    if (!drop) continue;
    std::string key = CommandKey(sandbox.id, command->id());
    writer_->Submit([key](DbBatch& batch) { batch.Delete(key); }, nullptr);
    std::lock_guard lock(sandbox.mutex);
    sandbox.command_of_request.erase(info.spec.request_id);
    sandbox.commands.erase(command->id());
  }
  if (logs.empty()) return;
  Status queued = pool_->Submit([logs = std::move(logs)] {
    for (const std::string& log : logs) {
      Status removed = RemoveTree(log);
      if (!removed.ok()) LogWarning("remove_log", {{"cause", removed.ToString()}});
    }
  });
  if (!queued.ok()) LogWarning("remove_logs", {{"cause", queued.ToString()}});
}

}  // namespace esker
