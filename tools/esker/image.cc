// esker image push|ls|inspect|rm|tag (export and sync: files of their own)

#include <algorithm>
#include <cstdio>

#include "esker/v1/image.grpc.pb.h"
#include "output.h"
#include "push_image.h"
#include "verbs.h"

namespace esker::cli {
namespace {

std::string DescribeProgress(const v1::PushProgress& progress, uint64_t total) {
  std::string text = "pushing ";
  if (total != 0) {
    uint64_t percent = std::min<uint64_t>(100, progress.bytes_read() * 100 / total);
    int filled = static_cast<int>(percent / 5);
    text += "[" + std::string(filled, '#') + std::string(20 - filled, '.') + "] " +
            std::to_string(percent) + "%  ";
  }
  return text + HumanBytes(progress.bytes_read()) + " read, " +
         HumanBytes(progress.bytes_stored()) + " stored, " +
         HumanBytes(progress.bytes_deduplicated()) + " deduplicated, " +
         std::to_string(progress.entries()) + " files";
}

void PrintPushed(const GlobalOptions& options, const v1::PushEvent::Done& done) {
  if (options.json) return PrintJson(done);
  const v1::PushProgress& totals = done.totals();
  std::printf("%s\n", done.image().id().c_str());
  std::printf("%u layers (%u already stored), %llu files: %s read, %s stored, %s deduplicated\n",
              totals.layers(), totals.layers_reused(),
              static_cast<unsigned long long>(totals.entries()),
              HumanBytes(totals.bytes_read()).c_str(), HumanBytes(totals.bytes_stored()).c_str(),
              HumanBytes(totals.bytes_deduplicated()).c_str());
}

struct Arguments {
  std::string from, reference, tag, prefix, project, job;
  ArchiveOptions archive;
  bool force = false, snapshots = false;
};

Status Push(const GlobalOptions& options, const Arguments& args) {
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<PushSource> source,
                         PushSource::Open(args.from, args.archive));
  ProgressLine line(options.json);
  Result<v1::PushEvent::Done> done =
      PushImage(options, OpenChannel(options), *source, {args.tag, args.project, args.job},
                [&](const v1::PushProgress& progress, uint64_t total) {
                  line.Show(DescribeProgress(progress, total));
                });
  line.Finish();
  ESKER_RETURN_IF_ERROR(done.status());
  PrintPushed(options, *done);
  return OkStatus();
}

std::string ProjectText(const std::string& project, v1::Visibility visibility) {
  if (visibility == v1::VISIBILITY_SHARED) return "(shared)";
  return project.empty() ? "-" : project;
}

Status ListImages(const GlobalOptions& options, const Arguments& args) {
  v1::ListImagesRequest request;
  request.set_prefix(args.prefix);
  request.set_include_snapshots(args.snapshots);
  request.set_project(args.project);
  ESKER_ASSIGN_OR_RETURN(v1::ListImagesResponse response,
                         Connection(options).Call(&v1::ImageService::Stub::List, request));
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "PROJECT", "ID", "KIND", "LAYERS", "SIZE", "PUBLISHED"}};
  for (v1::Image& image : *response.mutable_images()) {
    if (options.json) {
      PrintJson(image);
      continue;
    }
    if (image.names().empty()) {
      v1::ImageName* none = image.add_names();
      none->set_name("-");
      none->set_project(image.project());
      none->set_visibility(image.visibility());
    }
    for (const v1::ImageName& name : image.names()) {
      rows.push_back({name.name(), ProjectText(name.project(), name.visibility()),
                      ShortId(image.id()), image.kind(), std::to_string(image.layers_size()),
                      HumanBytes(image.plain_bytes()), HumanTime(image.published())});
    }
  }
  if (!options.json) PrintTable(rows);
  return OkStatus();
}

void PrintNames(const v1::Image& image) {
  for (const v1::ImageName& name : image.names()) {
    std::string job = name.job().empty() ? "" : ", job " + name.job();
    std::printf("name       %s (%s%s)\n", name.name().c_str(),
                name.project().empty() ? "shared" : ("project " + name.project()).c_str(),
                job.c_str());
  }
  if (image.names().empty() && !image.project().empty()) {
    std::printf("project    %s\n", image.project().c_str());
  }
}

void PrintLayers(const v1::Image& image) {
  std::vector<std::vector<std::string>> rows = {{"LAYER", "METADATA", "DATA", "SIZE", "SOURCE"}};
  for (int i = 0; i < image.layers_size(); ++i) {
    const v1::Layer& layer = image.layers(i);
    rows.push_back({std::to_string(i), ShortId(layer.metadata()),
                    layer.data().empty() ? "-" : ShortId(layer.data()),
                    HumanBytes(layer.metadata_bytes() + layer.data_bytes()),
                    layer.source_digest().empty() ? "-" : layer.source_digest().substr(0, 19)});
  }
  PrintTable(rows);
}

Status Inspect(const GlobalOptions& options, const Arguments& args) {
  v1::InspectImageRequest request;
  request.set_reference(args.reference);
  request.set_project(args.project);
  ESKER_ASSIGN_OR_RETURN(v1::Image image,
                         Connection(options).Call(&v1::ImageService::Stub::Inspect, request));
  if (options.json) {
    PrintJson(image);
    return OkStatus();
  }
  std::printf("id         %s\nkind       %s\n", image.id().c_str(), image.kind().c_str());
  PrintNames(image);
  if (!image.parent().empty()) std::printf("parent     %s\n", image.parent().c_str());
  for (auto& [key, value] : image.origin()) {
    std::printf("origin     %s=%s\n", key.c_str(), value.c_str());
  }
  std::printf("published  %s\nsize       %s\nconfig     %s\n", HumanTime(image.published()).c_str(),
              HumanBytes(image.plain_bytes()).c_str(), image.config_json().c_str());
  PrintLayers(image);
  return OkStatus();
}

Status Remove(const GlobalOptions& options, const Arguments& args) {
  v1::RemoveImageRequest request;
  request.set_reference(args.reference);
  request.set_force(args.force);
  request.set_project(args.project);
  ESKER_ASSIGN_OR_RETURN(v1::RemoveImageResponse response,
                         Connection(options).Call(&v1::ImageService::Stub::Remove, request));
  if (options.json) {
    PrintJson(response);
  } else {
    std::printf("%s\n", response.removed_image() ? "image removed" : "tag removed");
  }
  return OkStatus();
}

Status Tag(const GlobalOptions& options, const Arguments& args) {
  v1::TagImageRequest request;
  request.set_reference(args.reference);
  request.set_tag(args.tag);
  request.set_project(args.project);
  request.set_job(args.job);
  ESKER_ASSIGN_OR_RETURN(v1::Image image,
                         Connection(options).Call(&v1::ImageService::Stub::Tag, request));
  if (options.json) PrintJson(image);
  return OkStatus();
}

}  // namespace

void AddImage(CLI::App& app, GlobalOptions& options, Chosen& chosen) {
  CLI::App* image = app.add_subcommand("image", "push, list and remove images");
  image->require_subcommand(1);
  auto args = std::make_shared<Arguments>();
  using Verb = Status (*)(const GlobalOptions&, const Arguments&);
  auto add = [&](const char* name, const char* help, Verb verb) {
    CLI::App* sub = image->add_subcommand(name, help);
    sub->callback(Choose(options, chosen, [=, &options] { return verb(options, *args); }));
    return sub;
  };

  CLI::App* push = add("push", "push an image into the store", Push);
  push->add_option("from", args->from, kPushSources)->required();
  push->add_option("name", args->tag, "name[:tag] to give it")->required();
  AddArchiveOptions(push, args->archive);
  push->add_option("--project", args->project,
                   "whose name it is (default: the key's; else shared)");
  push->add_option("--job", args->job, "the job that pushes it");

  CLI::App* list = add("ls", "list images", ListImages);
  list->add_option("prefix", args->prefix, "only names that begin so");
  list->add_flag("--all", args->snapshots, "snapshots too");
  list->add_option("--project", args->project, "only of this project");

  CLI::App* inspect = add("inspect", "show one image", Inspect);
  inspect->add_option("image", args->reference, "[@project/]name or id")->required();
  inspect->add_option("--project", args->project, "whose name it is");

  CLI::App* remove = add("rm", "remove a name, or an image by id", Remove);
  remove->add_option("image", args->reference, "[@project/]name or id")->required();
  remove->add_flag("--force", args->force, "with an id: also when it has names");
  remove->add_option("--project", args->project,
                     "whose name it is (default: the key's; else shared)");

  CLI::App* tag = add("tag", "give an image another name", Tag);
  tag->add_option("image", args->reference, "[@project/]name or id")->required();
  tag->add_option("name", args->tag, "name[:tag]")->required();
  tag->add_option("--project", args->project, "whose name it is (default: the key's; else shared)");
  tag->add_option("--job", args->job, "the job that gives it");

  AddImageExport(*image, options, chosen);
  AddImageSync(*image, options, chosen);
}

}  // namespace esker::cli
