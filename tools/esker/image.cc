// esker image push|ls|inspect|rm|tag

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "base/io.h"
#include "esker/v1/image.grpc.pb.h"
#include "output.h"
#include "push_source.h"
#include "verbs.h"

namespace esker::cli {
namespace {

using PushStream = grpc::ClientReaderWriter<v1::PushRequest, v1::PushEvent>;
constexpr size_t kDataBytes = 1 << 20;

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

// Reads the server's events. Progress comes while layers are sent, so it has a thread of its own.
class EventReader {
 public:
  EventReader(PushStream* stream, bool quiet) : stream_(stream), quiet_(quiet) {}

  void ReadToEnd(uint64_t total) {
    v1::PushEvent event;
    while (stream_->Read(&event)) {
      if (event.has_progress() && !quiet_) line_.Show(DescribeProgress(event.progress(), total));
      if (event.has_done()) done_ = event.done();
    }
    line_.Finish();
  }
  const v1::PushEvent::Done& done() const { return done_; }

 private:
  PushStream* stream_;
  const bool quiet_;
  ProgressLine line_;
  v1::PushEvent::Done done_;
};

// False when the server has ended the call (its status says why).
Result<bool> SendLayer(PushStream* stream, PushSource& source, uint32_t layer) {
  v1::PushRequest request;
  request.mutable_layer()->set_index(layer);
  if (!stream->Write(request)) return false;
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> bytes, source.OpenLayer(layer));
  std::string buffer(kDataBytes, '\0');
  for (;;) {
    ESKER_ASSIGN_OR_RETURN(size_t n, bytes->Read(buffer.data(), buffer.size()));
    if (n == 0) break;
    request.set_data(buffer.data(), n);
    if (!stream->Write(request)) return false;
  }
  request.set_end_of_layer(true);
  return stream->Write(request);
}

Status SendAll(PushStream* stream, PushSource& source, const v1::PushEvent::Missing& missing) {
  for (uint32_t layer : missing.layers()) {
    ESKER_ASSIGN_OR_RETURN(bool going, SendLayer(stream, source, layer));
    if (!going) return OkStatus();
  }
  v1::PushRequest request;
  request.set_end(true);
  stream->Write(request);
  return OkStatus();
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

Status Push(const GlobalOptions& options, const std::string& from, const std::string& tag,
            const std::string& platform) {
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<PushSource> source, PushSource::Open(from, platform));
  auto stub = v1::ImageService::NewStub(OpenChannel(options));
  grpc::ClientContext context;
  Prepare(options, &context);
  std::unique_ptr<PushStream> stream = stub->Push(&context);
  v1::PushRequest request;
  source->FillBegin(request.mutable_begin());
  request.mutable_begin()->set_tag(tag);
  stream->Write(request);
  v1::PushEvent event;
  Status sent;
  EventReader reader(stream.get(), options.json);
  if (stream->Read(&event) && event.has_missing()) {
    uint64_t total = 0;
    for (uint32_t layer : event.missing().layers()) total += source->LayerBytes(layer);
    std::thread events([&] { reader.ReadToEnd(total); });
    sent = SendAll(stream.get(), *source, event.missing());
    if (!sent.ok()) context.TryCancel();
    stream->WritesDone();
    events.join();
  }
  grpc::Status ended = stream->Finish();
  ESKER_RETURN_IF_ERROR(sent);
  ESKER_RETURN_IF_ERROR(FromGrpc(ended, context));
  PrintPushed(options, reader.done());
  return OkStatus();
}

Status ListImages(const GlobalOptions& options, const std::string& prefix, bool snapshots) {
  auto stub = v1::ImageService::NewStub(OpenChannel(options));
  grpc::ClientContext context;
  Prepare(options, &context);
  v1::ListImagesRequest request;
  request.set_prefix(prefix);
  request.set_include_snapshots(snapshots);
  v1::ListImagesResponse response;
  ESKER_RETURN_IF_ERROR(FromGrpc(stub->List(&context, request, &response), context));
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "ID", "KIND", "LAYERS", "SIZE", "PUBLISHED"}};
  for (const v1::Image& image : response.images()) {
    if (options.json) {
      PrintJson(image);
      continue;
    }
    std::vector<std::string> names(image.tags().begin(), image.tags().end());
    if (names.empty()) names.push_back("-");
    for (const std::string& name : names) {
      rows.push_back({name, ShortId(image.id()), image.kind(), std::to_string(image.layers_size()),
                      HumanBytes(image.plain_bytes()), HumanTime(image.published())});
    }
  }
  if (!options.json) PrintTable(rows);
  return OkStatus();
}

Status Inspect(const GlobalOptions& options, const std::string& reference) {
  auto stub = v1::ImageService::NewStub(OpenChannel(options));
  grpc::ClientContext context;
  Prepare(options, &context);
  v1::InspectImageRequest request;
  request.set_reference(reference);
  v1::Image image;
  ESKER_RETURN_IF_ERROR(FromGrpc(stub->Inspect(&context, request, &image), context));
  if (options.json) {
    PrintJson(image);
    return OkStatus();
  }
  std::printf("id         %s\nkind       %s\n", image.id().c_str(), image.kind().c_str());
  for (const std::string& tag : image.tags()) std::printf("tag        %s\n", tag.c_str());
  if (!image.parent().empty()) std::printf("parent     %s\n", image.parent().c_str());
  for (auto& [key, value] : image.origin()) {
    std::printf("origin     %s=%s\n", key.c_str(), value.c_str());
  }
  std::printf("published  %s\nsize       %s\nconfig     %s\n", HumanTime(image.published()).c_str(),
              HumanBytes(image.plain_bytes()).c_str(), image.config_json().c_str());
  std::vector<std::vector<std::string>> rows = {{"LAYER", "METADATA", "DATA", "SIZE", "SOURCE"}};
  for (int i = 0; i < image.layers_size(); ++i) {
    const v1::Layer& layer = image.layers(i);
    rows.push_back({std::to_string(i), ShortId(layer.metadata()),
                    layer.data().empty() ? "-" : ShortId(layer.data()),
                    HumanBytes(layer.metadata_bytes() + layer.data_bytes()),
                    layer.source_digest().empty() ? "-" : layer.source_digest().substr(0, 19)});
  }
  PrintTable(rows);
  return OkStatus();
}

Status Remove(const GlobalOptions& options, const std::string& reference, bool force) {
  auto stub = v1::ImageService::NewStub(OpenChannel(options));
  grpc::ClientContext context;
  Prepare(options, &context);
  v1::RemoveImageRequest request;
  request.set_reference(reference);
  request.set_force(force);
  v1::RemoveImageResponse response;
  ESKER_RETURN_IF_ERROR(FromGrpc(stub->Remove(&context, request, &response), context));
  if (options.json) {
    PrintJson(response);
  } else {
    std::printf("%s\n", response.removed_image() ? "image removed" : "tag removed");
  }
  return OkStatus();
}

Status Tag(const GlobalOptions& options, const std::string& reference, const std::string& tag) {
  auto stub = v1::ImageService::NewStub(OpenChannel(options));
  grpc::ClientContext context;
  Prepare(options, &context);
  v1::TagImageRequest request;
  request.set_reference(reference);
  request.set_tag(tag);
  v1::Image image;
  ESKER_RETURN_IF_ERROR(FromGrpc(stub->Tag(&context, request, &image), context));
  if (options.json) PrintJson(image);
  return OkStatus();
}

}  // namespace

void AddImage(CLI::App& app, GlobalOptions& options, Chosen& chosen) {
  CLI::App* image = app.add_subcommand("image", "push, list and remove images");
  image->require_subcommand(1);
  struct Arguments {
    std::string from, reference, tag, prefix, platform = "linux/amd64";
    bool force = false, snapshots = false;
  };
  auto args = std::make_shared<Arguments>();
  auto choose = [&](std::function<Status()> work) {
    return Choose(options, chosen, std::move(work));
  };

  CLI::App* push = image->add_subcommand("push", "push an image into the store");
  push->add_option("from", args->from, "oci:PATH[:TAG], tar:FILE or dir:PATH")->required();
  push->add_option("name", args->tag, "name[:tag] to give it")->required();
  push->add_option("--platform", args->platform, "of a multi-platform layout");
  push->callback(
      choose([=, &options] { return Push(options, args->from, args->tag, args->platform); }));

  CLI::App* list = image->add_subcommand("ls", "list images");
  list->add_option("prefix", args->prefix, "only names that begin so");
  list->add_flag("--all", args->snapshots, "snapshots too");
  list->callback(
      choose([=, &options] { return ListImages(options, args->prefix, args->snapshots); }));

  CLI::App* inspect = image->add_subcommand("inspect", "show one image");
  inspect->add_option("image", args->reference, "name or id")->required();
  inspect->callback(choose([=, &options] { return Inspect(options, args->reference); }));

  CLI::App* remove = image->add_subcommand("rm", "remove a tag, or an image by id");
  remove->add_option("image", args->reference, "name or id")->required();
  remove->add_flag("--force", args->force, "with an id: also when it has tags");
  remove->callback(choose([=, &options] { return Remove(options, args->reference, args->force); }));

  CLI::App* tag = image->add_subcommand("tag", "give an image another name");
  tag->add_option("image", args->reference, "name or id")->required();
  tag->add_option("name", args->tag, "name[:tag]")->required();
  tag->callback(choose([=, &options] { return Tag(options, args->reference, args->tag); }));
}

}  // namespace esker::cli
