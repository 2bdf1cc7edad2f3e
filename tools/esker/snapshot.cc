// esker snapshot ls|rm

#include <cstdio>

#include "esker/v1/image.grpc.pb.h"
#include "output.h"
#include "verbs.h"

namespace esker::cli {
namespace {

std::string Origin(const v1::Image& image, const char* key) {
  auto it = image.origin().find(key);
  return it == image.origin().end() ? "-" : it->second;
}

Status List(const GlobalOptions& options, const std::string& sandbox, const std::string& project) {
  auto stub = v1::SnapshotService::NewStub(OpenChannel(options));
  grpc::ClientContext context;
  Prepare(options, &context);
  v1::ListSnapshotsRequest request;
  request.set_sandbox_id(sandbox);
  request.set_project(project);
  v1::ListImagesResponse response;
  ESKER_RETURN_IF_ERROR(FromGrpc(stub->List(&context, request, &response), context));
  std::vector<std::vector<std::string>> rows = {
      {"ID", "NAME", "SANDBOX", "PROJECT", "LAYERS", "SIZE", "PUBLISHED"}};
  for (const v1::Image& image : response.images()) {
    if (options.json) {
      PrintJson(image);
      continue;
    }
    rows.push_back({ShortId(image.id()), image.tags().empty() ? "-" : image.tags(0),
                    Origin(image, "sandbox"), Origin(image, "project"),
                    std::to_string(image.layers_size()), HumanBytes(image.plain_bytes()),
                    HumanTime(image.published())});
  }
  if (!options.json) PrintTable(rows);
  return OkStatus();
}

Status Remove(const GlobalOptions& options, const std::vector<std::string>& ids) {
  auto stub = v1::SnapshotService::NewStub(OpenChannel(options));
  for (const std::string& id : ids) {
    grpc::ClientContext context;
    Prepare(options, &context);
    v1::RemoveSnapshotRequest request;
    request.set_id(id);
    v1::RemoveImageResponse response;
    ESKER_RETURN_IF_ERROR(FromGrpc(stub->Remove(&context, request, &response), context));
    if (options.json) {
      PrintJson(response);
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
  remove->add_option("snapshot", args->ids, "ids")->required();
  remove->callback(Choose(options, chosen, [=, &options] { return Remove(options, args->ids); }));
}

}  // namespace esker::cli
