// esker gc, index rebuild, key, status, version; cache: cache.cc

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/io.h"
#include "cache.h"
#include "esker/v1/admin.grpc.pb.h"
#include "gateway/keys.h"
#include "output.h"
#include "verbs.h"
#include "version.h"

namespace esker::cli {
namespace {

Status CollectGarbage(const GlobalOptions& options, double grace_seconds) {
  if (grace_seconds < 0 && grace_seconds != -1) {
    return InvalidArgumentError("--grace must not be negative");
  }
  v1::CollectGarbageRequest request;
  request.set_grace_ms(grace_seconds < 0 ? -1 : static_cast<int64_t>(grace_seconds * 1000));
  ESKER_ASSIGN_OR_RETURN(
      v1::CollectGarbageResponse response,
      Connection(options).Call(&v1::AdminService::Stub::CollectGarbage, request));
  if (options.json) {
    PrintJson(response);
  } else {
    std::printf("%llu packs deleted (%s), %llu condemned, %llu live; %llu images live\n",
                static_cast<unsigned long long>(response.packs_deleted()),
                HumanBytes(response.bytes_deleted()).c_str(),
                static_cast<unsigned long long>(response.packs_condemned()),
                static_cast<unsigned long long>(response.packs_live()),
                static_cast<unsigned long long>(response.images_live()));
  }
  return OkStatus();
}

Status RebuildIndex(const GlobalOptions& options) {
  auto stub = v1::AdminService::NewStub(OpenChannel(options));
  grpc::ClientContext context;
  Prepare(options, &context);
  auto reader = stub->RebuildIndex(&context, v1::RebuildIndexRequest());
  v1::RebuildIndexEvent event;
  ProgressLine progress(/*quiet=*/options.json);
  while (reader->Read(&event)) {
    progress.Show(std::to_string(event.done()) + " of " + std::to_string(event.total()) + " packs");
    if (!event.finished()) continue;
    progress.Finish();
    if (options.json) {
      PrintJson(event);
    } else {
      std::printf("%llu packs, %llu images, %llu tags, %llu damaged\n",
                  static_cast<unsigned long long>(event.total()),
                  static_cast<unsigned long long>(event.images()),
                  static_cast<unsigned long long>(event.tags()),
                  static_cast<unsigned long long>(event.damaged()));
      for (const std::string& name : event.damaged_names()) std::printf("  %s\n", name.c_str());
    }
  }
  return FromGrpc(reader->Finish(), context);
}

Status ShowStatus(const GlobalOptions& options) {
  ESKER_ASSIGN_OR_RETURN(
      v1::GetStatusResponse response,
      Connection(options).Call(&v1::AdminService::Stub::GetStatus, v1::GetStatusRequest()));
  if (options.json) {
    PrintJson(response);
    return OkStatus();
  }
  std::printf("node       %s\nstore      %s (%s in %llu packs, %llu chunks)\n",
              response.node_id().c_str(), response.store().c_str(),
              HumanBytes(response.store_bytes()).c_str(),
              static_cast<unsigned long long>(response.packs()),
              static_cast<unsigned long long>(response.chunks()));
  std::printf(
      "images     %llu\nsandboxes  %llu\nprocesses  server %lld, keeper %lld, blob server %lld\n",
      static_cast<unsigned long long>(response.images()),
      static_cast<unsigned long long>(response.sandboxes()),
      static_cast<long long>(response.server_pid()), static_cast<long long>(response.keeper_pid()),
      static_cast<long long>(response.blob_server_pid()));
  return OkStatus();
}

nlohmann::json ToJson(const ApiKey& key) {
  return {{"name", key.name}, {"project", key.project}, {"role", key.admin ? "admin" : "user"}};
}

// Keys are a file of the server's: made on its machine by whoever may write that file.
Status CreateKey(const GlobalOptions& options, const std::string& file, const std::string& name,
                 const std::string& project, bool admin) {
  std::string directory = file.substr(0, file.rfind('/') + 1);
  if (!directory.empty() && !PathExists(directory)) {
    return NotFoundError("there is no directory " + directory +
                         "; name the data directory of the server with --data");
  }
  KeyFile keys(file);
  ESKER_ASSIGN_OR_RETURN(std::string secret, keys.Create(name, project, admin));
  if (options.json) {
    nlohmann::json json = ToJson({.name = name, .digest = {}, .project = project, .admin = admin});
    json["key"] = secret;
    PrintJson(json);
  } else {
    std::printf("%s\n", secret.c_str());
  }
  return OkStatus();
}

Status ListKeys(const GlobalOptions& options, const std::string& file) {
  KeyFile keys(file);
  ESKER_ASSIGN_OR_RETURN(std::vector<ApiKey> all, keys.List());
  std::vector<std::vector<std::string>> rows = {{"NAME", "PROJECT", "ROLE"}};
  for (const ApiKey& key : all) {
    if (options.json) PrintJson(ToJson(key));
    rows.push_back({key.name, key.project, key.admin ? "admin" : "user"});
  }
  if (!options.json) PrintTable(rows);
  return OkStatus();
}

Status RemoveKey(const GlobalOptions& options, const std::string& file, const std::string& name) {
  KeyFile keys(file);
  ESKER_ASSIGN_OR_RETURN(bool removed, keys.Remove(name));
  if (!removed) return NotFoundError("there is no key named " + name + " in " + file);
  if (options.json) PrintJson(nlohmann::json{{"removed", name}});
  return OkStatus();
}

}  // namespace

void AddAdmin(CLI::App& app, GlobalOptions& options, Chosen& chosen) {
  AddCache(app, options, chosen);
  struct Arguments {
    double grace = -1;
    std::string keys_file, data = "/var/lib/esker", name, project = "*";
    bool admin = false;
    std::string KeysFile() const { return keys_file.empty() ? data + "/keys" : keys_file; }
  };
  auto args = std::make_shared<Arguments>();
  auto choose = [&](std::function<Status()> work) {
    return Choose(options, chosen, std::move(work));
  };

  CLI::App* gc = app.add_subcommand("gc", "delete what nothing needs any more");
  gc->add_option("--grace", args->grace,
                 "seconds that condemned packs stay (default: the server's)");
  gc->callback(choose([=, &options] { return CollectGarbage(options, args->grace); }));

  CLI::App* index = app.add_subcommand("index", "the index of the store");
  index->require_subcommand(1);
  index->add_subcommand("rebuild", "build it anew from the store")->callback(choose([&options] {
    return RebuildIndex(options);
  }));

  app.add_subcommand("status", "what the server holds")->callback(choose([&options] {
    return ShowStatus(options);
  }));

  CLI::App* key = app.add_subcommand("key", "API keys for TCP clients (on the server's machine)");
  key->require_subcommand(1);
  key->add_option("--file", args->keys_file, "key file (default DATA/keys)");
  key->add_option("--data", args->data, "the server's data directory (default /var/lib/esker)");
  CLI::App* create = key->add_subcommand("create", "make a key and print it, once");
  create->alias("add");
  create->add_option("name", args->name, "its name")->required();
  create->add_option("--project", args->project, "the project it is bound to (default: all)");
  create->add_flag("--admin", args->admin, "may collect garbage and rebuild the index");
  create->callback(choose([=, &options] {
    return CreateKey(options, args->KeysFile(), args->name, args->project, args->admin);
  }));
  key->add_subcommand("ls", "list keys")->callback(choose([=, &options] {
    return ListKeys(options, args->KeysFile());
  }));
  CLI::App* remove = key->add_subcommand("rm", "remove a key");
  remove->add_option("name", args->name, "its name")->required();
  remove->callback(
      choose([=, &options] { return RemoveKey(options, args->KeysFile(), args->name); }));

  app.add_subcommand("version", "print the version")->callback(choose([&options]() -> Status {
    std::printf(options.json ? "{\"version\":\"%s\"}\n" : "esker %s\n", ESKER_VERSION);
    return OkStatus();
  }));
}

}  // namespace esker::cli
