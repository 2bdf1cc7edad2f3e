// esker sandbox create|exec|ls|inspect|describe|cp|pause|resume|snapshot|fork|rm

#include <cstdio>

#include "base/id.h"
#include "copy.h"
#include "esker/v1/command.grpc.pb.h"
#include "esker/v1/sandbox.grpc.pb.h"
#include "exec.h"
#include "output.h"
#include "verbs.h"

namespace esker::cli {
namespace {

struct Arguments {
  v1::CreateSandboxRequest create;
  std::vector<std::string> metadata, envs;
  std::string id, name, from, to, project, job;
  std::vector<std::string> ids;
  double cpu = 0;
  uint32_t memory_mb = 0, disk_mb = 0, pids = 0, count = 1;
  double ttl = 0, idle_ttl = 0, timeout = 0;
  std::string image, tier = "container";
  ExecArguments exec;
  bool all = false;
};

// "a=b" pairs.
Status AddPairs(const std::vector<std::string>& pairs, const std::string& what,
                google::protobuf::Map<std::string, std::string>* into) {
  for (const std::string& pair : pairs) {
    size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0) {
      return InvalidArgumentError(what + " " + pair + ": want NAME=VALUE");
    }
    (*into)[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  return OkStatus();
}

int64_t ToMillis(double seconds) { return seconds < 0 ? -1 : static_cast<int64_t>(seconds * 1000); }

const char* StateName(v1::SandboxState state) {
  switch (state) {
    case v1::SANDBOX_STATE_CREATING:
      return "creating";
    case v1::SANDBOX_STATE_RUNNING:
      return "running";
    case v1::SANDBOX_STATE_PAUSED:
      return "paused";
    case v1::SANDBOX_STATE_ENDED:
      return "ended";
    default:
      return "unknown";
  }
}

Result<v1::Tier> ParseTier(const std::string& name) {
  if (name == "function") return v1::TIER_FUNCTION;
  if (name == "container") return v1::TIER_CONTAINER;
  if (name == "microvm") return v1::TIER_MICROVM;
  if (name == "vm") return v1::TIER_VM;
  return InvalidArgumentError("tier must be function, container, microvm or vm, not " + name);
}

class SandboxVerbs {
 public:
  explicit SandboxVerbs(const GlobalOptions& options) : options_(options), server_(options) {}

  Status Create(const Arguments& args) {
    v1::CreateSandboxRequest request;
    request.set_request_id(RandomId("req"));
    request.set_image(args.image);
    ESKER_ASSIGN_OR_RETURN(v1::Tier tier, ParseTier(args.tier));
    request.set_tier(tier);
    request.mutable_resources()->set_cpu(args.cpu);
    request.mutable_resources()->set_memory_mb(args.memory_mb);
    request.mutable_resources()->set_disk_mb(args.disk_mb);
    request.mutable_resources()->set_pids(args.pids);
    request.set_ttl_ms(ToMillis(args.ttl));
    request.set_idle_ttl_ms(ToMillis(args.idle_ttl));
    request.set_project(args.project);
    request.set_job(args.job);
    request.set_idempotency_key(args.name);
    ESKER_RETURN_IF_ERROR(AddPairs(args.metadata, "--metadata", request.mutable_metadata()));
    ESKER_RETURN_IF_ERROR(AddPairs(args.envs, "--env", request.mutable_envs()));
    ESKER_ASSIGN_OR_RETURN(v1::Sandbox sandbox,
                           server_.Call(&v1::SandboxService::Stub::Create, request));
    Print(sandbox, sandbox.id());
    return OkStatus();
  }

  Status List(const Arguments& args) {
    v1::ListSandboxesRequest request;
    request.set_include_ended(args.all);
    request.set_project(args.project);
    request.set_job(args.job);
    request.set_page_size(1000);
    ESKER_RETURN_IF_ERROR(AddPairs(args.metadata, "--metadata", request.mutable_metadata()));
    std::vector<std::vector<std::string>> rows = {
        {"ID", "IMAGE", "STATE", "PROJECT", "CREATED", "EXPIRES"}};
    do {
      ESKER_ASSIGN_OR_RETURN(v1::ListSandboxesResponse response,
                             server_.Call(&v1::SandboxService::Stub::List, request));
      for (const v1::Sandbox& sandbox : response.sandboxes()) {
        if (options_.json) {
          PrintJson(sandbox);
          continue;
        }
        std::string state = StateName(sandbox.state());
        if (!sandbox.end_reason().empty()) state += " (" + sandbox.end_reason() + ")";
        // A snapshot is named by its whole id; twelve digits name it too.
        std::string image = sandbox.image_name() == sandbox.image() ? ShortId(sandbox.image())
                                                                    : sandbox.image_name();
        rows.push_back({sandbox.id(), image, state, sandbox.project(), HumanTime(sandbox.created()),
                        HumanTime(sandbox.expires())});
      }
      request.set_page_token(response.next_page_token());
    } while (!request.page_token().empty());
    if (!options_.json) PrintTable(rows);
    return OkStatus();
  }

  Status Inspect(const Arguments& args) {
    v1::GetSandboxRequest request;
    request.set_id(args.id);
    ESKER_ASSIGN_OR_RETURN(v1::Sandbox sandbox,
                           server_.Call(&v1::SandboxService::Stub::Get, request));
    Print(sandbox, "");
    return OkStatus();
  }

  Status Describe(const Arguments& args) {
    v1::DescribeSandboxRequest request;
    request.set_id(args.id);
    ESKER_ASSIGN_OR_RETURN(v1::DescribeSandboxResponse response,
                           server_.Call(&v1::SandboxService::Stub::Describe, request));
    if (options_.json) {
      PrintJson(response);
      return OkStatus();
    }
    PrintSandbox(response.sandbox());
    const v1::SandboxMetrics& metrics = response.metrics();
    std::printf("memory    %s now, %s peak, %s limit, %llu OOM kills\n",
                HumanBytes(metrics.memory_bytes()).c_str(),
                HumanBytes(metrics.memory_peak_bytes()).c_str(),
                HumanBytes(metrics.memory_limit_bytes()).c_str(),
                static_cast<unsigned long long>(metrics.oom_kills()));
    std::printf("disk      %s of %s\ncpu       %.3f s\nprocesses %llu\n",
                HumanBytes(metrics.disk_bytes()).c_str(),
                metrics.disk_limit_bytes() == 0 ? "no limit"
                                                : HumanBytes(metrics.disk_limit_bytes()).c_str(),
                static_cast<double>(metrics.cpu_nanos()) / 1e9,
                static_cast<unsigned long long>(metrics.pids()));
    std::vector<std::vector<std::string>> rows = {{"TIME", "EVENT", "DETAIL"}};
    for (const auto& event : response.events()) {
      rows.push_back({HumanTime(event.time()), event.what(), event.detail()});
    }
    PrintTable(rows);
    return OkStatus();
  }

  Status Remove(const Arguments& args) {
    for (const std::string& id : args.ids) {
      v1::DeleteSandboxRequest request;
      request.set_id(id);
      request.set_request_id(RandomId("req"));
      Result<v1::DeleteSandboxResponse> response =
          server_.Call(&v1::SandboxService::Stub::Delete, request);
      if (!response.ok()) return std::move(response).status().Wrap(id);
      Print(*response, id + (response->existed() ? " removed" : " was gone already"));
    }
    return OkStatus();
  }

  Status Pause(const Arguments& args) {
    v1::PauseSandboxRequest request;
    request.set_id(args.id);
    request.set_request_id(RandomId("req"));
    ESKER_ASSIGN_OR_RETURN(v1::PauseSandboxResponse response,
                           server_.Call(&v1::SandboxService::Stub::Pause, request));
    Print(response, "paused; " + HumanBytes(response.bytes_freed()) + " freed, " +
                        HumanBytes(response.bytes_kept()) + " kept");
    return OkStatus();
  }

  Status Resume(const Arguments& args) {
    v1::ResumeSandboxRequest request;
    request.set_id(args.id);
    request.set_request_id(RandomId("req"));
    ESKER_ASSIGN_OR_RETURN(v1::Sandbox sandbox,
                           server_.Call(&v1::SandboxService::Stub::Resume, request));
    Print(sandbox, "running");
    return OkStatus();
  }

  Status Snapshot(const Arguments& args) {
    v1::SnapshotSandboxRequest request;
    request.set_id(args.id);
    request.set_request_id(RandomId("req"));
    request.set_keep(v1::KEEP_FILES);
    request.set_name(args.name);
    ESKER_ASSIGN_OR_RETURN(v1::SnapshotSandboxResponse response,
                           server_.Call(&v1::SandboxService::Stub::Snapshot, request));
    Print(response, response.image());
    return OkStatus();
  }

  Status Fork(const Arguments& args) {
    v1::ForkSandboxRequest request;
    request.set_id(args.id);
    request.set_request_id(RandomId("req"));
    request.set_keep(v1::KEEP_FILES);
    request.set_count(args.count);
    ESKER_ASSIGN_OR_RETURN(v1::ForkSandboxResponse response,
                           server_.Call(&v1::SandboxService::Stub::Fork, request));
    if (options_.json) PrintJson(response);
    Status first_failure;
    for (const auto& child : response.children()) {
      if (child.has_sandbox()) {
        if (!options_.json) std::printf("%s\n", child.sandbox().id().c_str());
      } else if (first_failure.ok()) {
        first_failure = Status(static_cast<Code>(child.error_code()), child.error_message());
      }
    }
    return first_failure.Wrap("some children could not be made");
  }

  Status Copy(const Arguments& args) {
    return CopyFile(options_, args.from, args.to, args.exec.user);
  }

 private:
  template <typename Message>
  void Print(const Message& message, const std::string& text) {
    if (options_.json) return PrintJson(message);
    if constexpr (std::is_same_v<Message, v1::Sandbox>) {
      if (text.empty()) return PrintSandbox(message);
    }
    std::printf("%s\n", text.c_str());
  }

  static void PrintSandbox(const v1::Sandbox& sandbox) {
    std::printf("id        %s\nimage     %s (%s)\nstate     %s\nproject   %s\n",
                sandbox.id().c_str(), sandbox.image_name().c_str(),
                ShortId(sandbox.image()).c_str(), StateName(sandbox.state()),
                sandbox.project().c_str());
    if (!sandbox.job().empty()) std::printf("job       %s\n", sandbox.job().c_str());
    for (auto& [key, value] : sandbox.metadata()) {
      std::printf("metadata  %s=%s\n", key.c_str(), value.c_str());
    }
    std::printf("created   %s\nexpires   %s\n", HumanTime(sandbox.created()).c_str(),
                HumanTime(sandbox.expires()).c_str());
    if (!sandbox.end_reason().empty()) {
      std::printf("ended     %s: %s %s\n", HumanTime(sandbox.ended()).c_str(),
                  sandbox.end_reason().c_str(), sandbox.end_message().c_str());
    }
  }

  const GlobalOptions& options_;
  const Connection server_;
};

// Our own failures, where the exit code is otherwise the command's (as env(1) and container tools
// do).
constexpr int kExecFailed = 125;

int FailExec(const GlobalOptions& options, const Status& status) {
  ReportFailure(options, status);
  return kExecFailed;
}

int RunExec(const GlobalOptions& options, Arguments& args) {
  if (args.exec.argv.empty()) {
    return FailExec(options, InvalidArgumentError("exec: no command was given"));
  }
  google::protobuf::Map<std::string, std::string> envs;
  Status status = AddPairs(args.envs, "--env", &envs);
  if (!status.ok()) return FailExec(options, status);
  args.exec.envs.insert(envs.begin(), envs.end());
  args.exec.timeout_ms = ToMillis(args.timeout);
  Result<int> code = Exec(options, args.exec);
  return code.ok() ? *code : FailExec(options, code.status());
}

}  // namespace

void AddSandbox(CLI::App& app, GlobalOptions& options, Chosen& chosen) {
  CLI::App* sandbox = app.add_subcommand("sandbox", "create, use and delete sandboxes");
  sandbox->require_subcommand(1);
  auto args = std::make_shared<Arguments>();
  using Verb = Status (SandboxVerbs::*)(const Arguments&);
  auto choose = [=, &options, &chosen](Verb verb) {
    return Choose(options, chosen, [=, &options] { return (SandboxVerbs(options).*verb)(*args); });
  };
  auto add = [&](const char* name, const char* help, Verb verb) {
    CLI::App* sub = sandbox->add_subcommand(name, help);
    sub->callback(choose(verb));
    return sub;
  };
  auto add_with_id = [&](const char* name, const char* help, Verb verb) {
    CLI::App* sub = add(name, help, verb);
    sub->add_option("sandbox", args->id, "its id")->required();
    return sub;
  };

  CLI::App* create = add("create", "make a sandbox and print its id", &SandboxVerbs::Create);
  create->add_option("image", args->image, "image name[:tag], or image or snapshot id")->required();
  create->add_option("--tier", args->tier, "function, container, microvm or vm");
  create->add_option("--ttl", args->ttl, "seconds to live (0: the server's default, -1: no end)");
  create->add_option("--idle-ttl", args->idle_ttl, "seconds to live without use (0: no end)");
  create->add_option("--cpu", args->cpu, "cores (0: no limit)");
  create->add_option("--memory-mb", args->memory_mb, "MiB of memory");
  create->add_option("--disk-mb", args->disk_mb, "MiB of writable space");
  create->add_option("--pids", args->pids, "processes and threads");
  create->add_option("--env", args->envs, "NAME=VALUE for every command");
  create->add_option("--metadata", args->metadata, "NAME=VALUE to find it again");
  create->add_option("--project", args->project, "project it belongs to");
  create->add_option("--job", args->job, "job it belongs to");
  create->add_option("--idempotency-key", args->name, "the same key gives the same sandbox");

  CLI::App* exec = sandbox->add_subcommand("exec", "run a command; its exit code is ours");
  exec->add_option("sandbox", args->exec.sandbox, "its id")->required();
  exec->add_flag("-i,--interactive", args->exec.interactive, "forward standard input");
  exec->add_flag("-t,--tty", args->exec.terminal, "give it a terminal");
  exec->add_flag("-s,--shell", args->exec.shell, "the words are a line for the shell");
  exec->add_flag("-d,--detach", args->exec.background, "start it, print its id, and return");
  exec->add_option("-u,--user", args->exec.user, "user, uid, user:group or uid:gid");
  exec->add_option("-w,--workdir", args->exec.cwd, "working directory");
  exec->add_option("-e,--env", args->envs, "NAME=VALUE");
  exec->add_option("--timeout", args->timeout, "seconds until everything it started is killed");
  // Everything after the sandbox is the command's, options too.
  exec->footer("SANDBOX is followed by [--] PROGRAM [ARGUMENT...]");
  exec->fallthrough(false);
  exec->prefix_command();
  exec->callback([=, &options, &chosen] {
    args->exec.argv = exec->remaining();
    chosen = [=, &options] { return RunExec(options, *args); };
  });

  CLI::App* list = add("ls", "list sandboxes", &SandboxVerbs::List);
  list->add_flag("--all", args->all, "ended ones of the last day too");
  list->add_option("--project", args->project, "only of this project");
  list->add_option("--job", args->job, "only of this job");
  list->add_option("--metadata", args->metadata, "only with this NAME=VALUE");

  add_with_id("inspect", "show one sandbox", &SandboxVerbs::Inspect);
  add_with_id("describe", "show what happened to it", &SandboxVerbs::Describe);
  add_with_id("pause", "freeze it and give memory back", &SandboxVerbs::Pause);
  add_with_id("resume", "let it go on", &SandboxVerbs::Resume);
  CLI::App* snapshot = add_with_id("snapshot", "make an image of its files, print the image's id",
                                   &SandboxVerbs::Snapshot);
  snapshot->add_option("--name", args->name, "name[:tag] for the image");
  CLI::App* fork = add_with_id("fork", "new sandboxes from its files", &SandboxVerbs::Fork);
  fork->add_option("-n,--count", args->count, "how many");

  CLI::App* copy = add("cp", "copy a file in or out", &SandboxVerbs::Copy);
  copy->add_option("from", args->from, "FILE, - or SANDBOX:PATH")->required();
  copy->add_option("to", args->to, "FILE, - or SANDBOX:PATH")->required();
  copy->add_option("-u,--user", args->exec.user, "user of the sandbox who does it");

  CLI::App* remove = add("rm", "end sandboxes and free what they hold", &SandboxVerbs::Remove);
  remove->add_option("sandbox", args->ids, "ids")->required();
}

}  // namespace esker::cli
