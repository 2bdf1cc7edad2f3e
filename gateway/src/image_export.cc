// ImageService.Export: an image as OCI layers, streaming.
#include "image_service.h"
#include "imagefs/export.h"

namespace esker::gateway {
namespace {

using ExportStream = grpc::ServerWriter<v1::ExportEvent>;

constexpr size_t kDataBytes = 256u << 10;

// Gathers small pieces into messages. Write blocks while the client is slow, so memory stays
// bounded.
class DataWriter {
 public:
  explicit DataWriter(ExportStream* stream) : stream_(stream) {}
  Status Write(std::string_view bytes) {
    while (!bytes.empty()) {
      const size_t n = std::min(bytes.size(), kDataBytes - pending_.size());
      pending_.append(bytes.substr(0, n));
      bytes.remove_prefix(n);
      if (pending_.size() == kDataBytes) ESKER_RETURN_IF_ERROR(Flush());
    }
    return OkStatus();
  }
  Status Flush() {
    if (pending_.empty()) return OkStatus();
    v1::ExportEvent event;
    event.set_data(pending_);
    pending_.clear();
    if (stream_->Write(event)) return OkStatus();
    return CancelledError("the client ended the export");
  }

 private:
  ExportStream* stream_;
  std::string pending_;
};

v1::ExportEvent EndOfLayer(const ExportedLayer& layer) {
  v1::ExportEvent event;
  v1::ExportEvent::LayerEnd* end = event.mutable_layer_end();
  end->set_digest(layer.digest);
  end->set_diff_id(layer.diff_id);
  end->set_size(layer.size);
  for (const std::string& path : layer.left_out) end->add_left_out(path);
  end->set_left_out_count(layer.left_out_count);
  return event;
}

Status SendLayers(const ExportSource& source, const ImageRecord& record,
                  LayerCompression compression, ExportStream* stream) {
  v1::ExportEvent event;
  event.mutable_begin()->set_image(record.id.ToHex());
  event.mutable_begin()->set_layers(static_cast<uint32_t>(record.manifest.layers.size()));
  event.mutable_begin()->set_plain_bytes(record.plain_bytes);
  if (!stream->Write(event)) return CancelledError("the client ended the export");
  std::vector<ExportedLayer> layers;
  for (const ImageLayer& layer : record.manifest.layers) {
    DataWriter writer(stream);
    Result<ExportedLayer> exported = ExportLayer(
        source, layer, compression, [&](std::string_view bytes) { return writer.Write(bytes); });
    if (!exported.ok()) {
      return std::move(exported).status().Wrap("layer " + std::to_string(layers.size()));
    }
    ESKER_RETURN_IF_ERROR(writer.Flush());
    if (!stream->Write(EndOfLayer(*exported))) return CancelledError("the client ended the export");
    layers.push_back(std::move(*exported));
  }
  OciDocuments documents = MakeOciDocuments(record.manifest, layers);
  event.mutable_done()->set_manifest_json(std::move(documents.manifest_json));
  event.mutable_done()->set_config_json(std::move(documents.config_json));
  stream->Write(event);
  return OkStatus();
}

}  // namespace

grpc::Status ImageService::Export(grpc::ServerContext* context,
                                  const v1::ExportImageRequest* request, ExportStream* stream) {
  auto work = [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(Caller caller, s_.Authenticate(*context));
    ESKER_ASSIGN_OR_RETURN(std::string project,
                           caller.ChooseProject(request->project(), "default"));
    ESKER_ASSIGN_OR_RETURN(
        LayerCompression compression,
        ParseCompression(request->compression().empty() ? "gzip" : request->compression()));
    ESKER_ASSIGN_OR_RETURN(ImageRecord record,
                           s_.index.ResolveImage(request->reference(), caller.View(project)));
    // Garbage collection leaves it alone meanwhile, also when its last name goes.
    ESKER_ASSIGN_OR_RETURN(std::unique_ptr<Lease> lease, s_.index.LeaseImage(record.id, "export"));
    const ExportSource source = {s_.store,
                                 [this](const BlobId& id) { return s_.index.GetBlobMap(id); },
                                 [context] { return context->IsCancelled(); }};
    return SendLayers(source, record, compression, stream);
  };
  return ToGrpc(*context, work(), "IMAGE");
}

}  // namespace esker::gateway
