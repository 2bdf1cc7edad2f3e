// esker image export

#include <algorithm>
#include <cstdio>

#include "base/digest.h"
#include "esker/v1/image.grpc.pb.h"
#include "export_target.h"
#include "output.h"
#include "verbs.h"

namespace esker::cli {
namespace {

struct Arguments {
  std::string reference, target, compression, project;
};

// Takes the stream's events in order, and compares what came with what the server says it sent.
class Receiver {
 public:
  Receiver(ExportTarget& target, bool quiet) : target_(target), line_(quiet) {}

  Status Take(const v1::ExportEvent& event) {
    switch (event.event_case()) {
      case v1::ExportEvent::kBegin:
        begin_ = event.begin();
        return OkStatus();
      case v1::ExportEvent::kData:
        hash_.Update(event.data());
        layer_bytes_ += event.data().size();
        bytes_ += event.data().size();
        line_.Show("exporting layer " + std::to_string(layers_ + 1) + " of " +
                   std::to_string(begin_.layers()) + ", " + HumanBytes(bytes_) + " written");
        return target_.Write(event.data());
      case v1::ExportEvent::kLayerEnd:
        return EndLayer(event.layer_end());
      case v1::ExportEvent::kDone:
        done_ = event.done();
        return OkStatus();
      case v1::ExportEvent::EVENT_NOT_SET:
        break;
    }
    return OkStatus();
  }

  // When the call has ended well.
  Status Finish() {
    line_.Finish();
    if (layers_ != begin_.layers() || done_.manifest_json().empty()) {
      return DataLossError("the server ended the export before its end");
    }
    return target_.Finish(done_.manifest_json(), done_.config_json());
  }

  void Print(const Arguments& args, bool json) const {
    const std::string digest = "sha256:" + Sha256::Of(done_.manifest_json()).ToHex();
    if (json) {
      v1::ExportSummary summary;
      summary.set_image(begin_.image());
      summary.set_manifest_digest(digest);
      summary.set_layers(layers_);
      summary.set_bytes(bytes_);
      for (const std::string& path : left_out_) summary.add_left_out(path);
      summary.set_left_out_count(left_out_count_);
      return PrintJson(summary);
    }
    std::printf("%s\n%u layers, %s written to %s\n", digest.c_str(), layers_,
                HumanBytes(bytes_).c_str(), args.target.c_str());
    if (left_out_count_ == 0) return;
    std::printf("left out, since an OCI layer cannot hold them: %llu sockets",
                static_cast<unsigned long long>(left_out_count_));
    for (const std::string& path : left_out_) std::printf("\n  %s", path.c_str());
    std::printf("\n");
  }

 private:
  Status EndLayer(const v1::ExportEvent::LayerEnd& end) {
    const std::string digest = "sha256:" + hash_.Finish().ToHex();
    if (digest != end.digest() || layer_bytes_ != end.size()) {
      return DataLossError("layer " + std::to_string(layers_) + " arrived as " + digest +
                           ", the server sent " + end.digest());
    }
    ++layers_;
    layer_bytes_ = 0;
    left_out_.insert(left_out_.end(), end.left_out().begin(), end.left_out().end());
    left_out_count_ += end.left_out_count();
    return target_.EndBlob(digest);
  }

  ExportTarget& target_;
  ProgressLine line_;
  v1::ExportEvent::Begin begin_;
  v1::ExportEvent::Done done_;
  Sha256 hash_;
  uint32_t layers_ = 0;
  uint64_t layer_bytes_ = 0, bytes_ = 0, left_out_count_ = 0;
  std::vector<std::string> left_out_;
};

Status Export(const GlobalOptions& options, const Arguments& args) {
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<ExportTarget> target,
                         ExportTarget::Open(args.target, args.reference));
  auto stub = v1::ImageService::NewStub(OpenChannel(options));
  grpc::ClientContext context;
  Prepare(options, &context);
  v1::ExportImageRequest request;
  request.set_reference(args.reference);
  request.set_project(args.project);
  const bool docker = args.target.starts_with("docker-archive:");
  request.set_compression(!args.compression.empty() ? args.compression : docker ? "none" : "gzip");
  std::unique_ptr<grpc::ClientReader<v1::ExportEvent>> stream = stub->Export(&context, request);
  Receiver receiver(*target, options.json);
  Status taken;
  v1::ExportEvent event;
  while (taken.ok() && stream->Read(&event)) taken = receiver.Take(event);
  if (!taken.ok()) context.TryCancel();
  grpc::Status ended = stream->Finish();
  ESKER_RETURN_IF_ERROR(taken);
  ESKER_RETURN_IF_ERROR(FromGrpc(ended, context));
  ESKER_RETURN_IF_ERROR(receiver.Finish());
  receiver.Print(args, options.json);
  return OkStatus();
}

}  // namespace

void AddImageExport(CLI::App& image, GlobalOptions& options, Chosen& chosen) {
  auto args = std::make_shared<Arguments>();
  CLI::App* verb = image.add_subcommand("export", "write an image or snapshot as an OCI image");
  verb->add_option("image", args->reference, "[@project/]name or id")->required();
  verb->add_option("to", args->target,
                   "oci:PATH[:TAG], oci-archive:FILE[:TAG] or docker-archive:FILE[:NAME[:TAG]]")
      ->required();
  verb->add_option("--compression", args->compression,
                   "of layers: gzip, zstd or none (default gzip; none for docker-archive)");
  verb->add_option("--project", args->project, "whose name it is");
  verb->callback(Choose(options, chosen, [args, &options] { return Export(options, *args); }));
}

}  // namespace esker::cli
