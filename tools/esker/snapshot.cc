// esker snapshot ls|rm

#include <cstdio>

#include "esker/v1/image.grpc.pb.h"
#include "output.h"
#include "verbs.h"

namespace esker::cli {
namespace {

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

std::string SandboxOf(const v1::Image& image) {
  auto it = image.origin().find("sandbox");
  return it == image.origin().end() ? "-" : it->second;
}

Status List(const GlobalOptions& options, const std::string& sandbox, const std::string& project) {
  v1::ListSnapshotsRequest request;
  request.set_sandbox_id(sandbox);
  request.set_project(project);
  ESKER_ASSIGN_OR_RETURN(v1::ListImagesResponse response,
                         Connection(options).Call(&v1::SnapshotService::Stub::List, request));
  std::vector<std::vector<std::string>> rows = {
      {"ID", "NAME", "SANDBOX", "PROJECT", "JOB", "LAYERS", "SIZE", "PUBLISHED"}};
  for (const v1::Image& image : response.images()) {
    if (options.json) {
      PrintJson(image);
      continue;
    }
    rows.push_back({ShortId(image.id()), image.names().empty() ? "-" : image.names(0).name(),
                    SandboxOf(image), OrDash(image.project()), OrDash(image.job()),
                    std::to_string(image.layers_size()), HumanBytes(image.plain_bytes()),
                    HumanTime(image.published())});
  }
  if (!options.json) PrintTable(rows);
  return OkStatus();
}

Status Remove(const GlobalOptions& options, const std::vector<std::string>& ids,
              const std::string& project) {
  Connection server(options);
  for (const std::string& id : ids) {
    v1::RemoveSnapshotRequest request;
    request.set_id(id);
    request.set_project(project);
    Result<v1::RemoveImageResponse> response =
        server.Call(&v1::SnapshotService::Stub::Remove, request);
    if (!response.ok()) return std::move(response).status().Wrap(id);
    if (options.json) {
      PrintJson(*response);
    } else {
      std::printf("%s removed\n", id.c_str());
    }
  }
  return OkStatus();
}

}  // namespace

void AddSnapshot(CLI::App& app, GlobalOptions& options, Chosen& chosen) {
  CLI::App* snapshot = app.add_subcommand("snapshot", "list and remove snapshots");
  snapshot->require_subcommand(1);
  struct Arguments {
    std::string sandbox, project;
    std::vector<std::string> ids;
  };
  auto args = std::make_shared<Arguments>();
  CLI::App* list = snapshot->add_subcommand("ls", "list snapshots");
  list->add_option("--sandbox", args->sandbox, "only of this sandbox");
  list->add_option("--project", args->project, "only of this project");
  list->callback(Choose(options, chosen,
                        [=, &options] { return List(options, args->sandbox, args->project); }));
  CLI::App* remove = snapshot->add_subcommand("rm", "remove snapshots");
  remove->add_option("snapshot", args->ids, "ids or names")->required();
  remove->add_option("--project", args->project, "whose names these are");
  remove->callback(
      Choose(options, chosen, [=, &options] { return Remove(options, args->ids, args->project); }));
}

}  // namespace esker::cli
