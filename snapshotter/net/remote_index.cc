#include "snapshotter/remote_index.h"

#include <charconv>
#include <utility>

#include "base/id.h"
#include "base/io.h"
#include "net/convert.h"
#include "net/index_channel.h"
#include "net/node_leases.h"
#include "net/remote_import.h"

namespace esker {
namespace {

using namespace index_net;  // NOLINT: this file is that namespace's face
using Stub = IndexChannel::Stub;
using Deadline = IndexChannel::Deadline;

constexpr size_t kMaxMapBytes = size_t{1} << 30;  // some ten million chunks

class RemoteIndex final : public Index {
 public:
  explicit RemoteIndex(const RemoteIndexOptions& options)
      : node_(options.node_id),
        channel_(options.address, options.key, options.patience_ns),
        leases_(channel_, options.node_id, options.node_epoch) {}

  // --- packs, chunks, blobs
  std::unique_ptr<ImportSession> StartImport() override {
    return std::make_unique<RemoteImport>(channel_, leases_);
  }

  Status RegisterPack(const PackWriter::Published& pack) override {
    pb::RegisterPackRequest request;
    ToProto(leases_.NextCall(), request.mutable_holder());
    request.set_pack(BytesOf(pack.id));
    pb::RegisterPackResponse response;
    return channel_.Repeat(&Stub::RegisterPack, request, &response, IndexChannel::kWaiting);
  }

  Result<BlobMap> GetBlobMap(const BlobId& id) override {
    std::string bytes;
    pb::GetBlobMapRequest request;
    request.set_blob(BytesOf(id));
    ESKER_RETURN_IF_ERROR(channel_.Repeat(IndexChannel::kWaiting,
                                          [&](Stub& stub, grpc::ClientContext& context) -> Status {
                                            bytes.clear();
                                            auto stream = stub.GetBlobMap(&context, request);
                                            for (pb::BlobMapPart part; stream->Read(&part);) {
                                              bytes += part.bytes();
                                              if (bytes.size() > kMaxMapBytes) context.TryCancel();
                                            }
                                            return channel_.Translate(stream->Finish());
                                          }));
    return BlobMap::Parse(bytes);
  }

  Result<std::optional<ImageLayer>> FindLayer(const std::string& diff_id) override {
    pb::FindLayerRequest request;
    request.set_diff_id(diff_id);
    pb::FindLayerResponse response;
    ESKER_RETURN_IF_ERROR(channel_.Repeat(&Stub::FindLayer, request, &response));
    if (!response.has_layer()) return std::optional<ImageLayer>();
    ESKER_ASSIGN_OR_RETURN(ImageLayer layer, FromProto(response.layer()));
    return std::optional<ImageLayer>(std::move(layer));
  }

  // --- images and tags
  Result<ImageId> PublishImage(const Manifest& manifest) override {
    pb::PublishImageRequest request;
    request.set_manifest(manifest.ToJson());
    pb::PublishImageResponse response;
    ESKER_RETURN_IF_ERROR(
        channel_.Repeat(&Stub::PublishImage, request, &response, IndexChannel::kWaiting));
    return IdFrom<ImageId>(response.image(), "image");
  }

  Result<ImageRecord> GetImage(const ImageId& id) override {
    pb::GetImageRequest request;
    request.set_image(BytesOf(id));
    pb::ImageRecord response;
    ESKER_RETURN_IF_ERROR(channel_.Repeat(&Stub::GetImage, request, &response));
    return FromProto(response);
  }

  Result<ImageRecord> ResolveImage(const std::string& reference, const ImageView& view) override {
    pb::ResolveImageRequest request;
    request.set_reference(reference);
    request.set_project(view.project);
    request.set_restricted(!view.all);
    pb::ImageRecord response;
    ESKER_RETURN_IF_ERROR(channel_.Repeat(&Stub::ResolveImage, request, &response));
    return FromProto(response);
  }

  Result<std::vector<ImageRecord>> ListImages() override {
    std::vector<ImageRecord> records;
    Status parsed;
    ESKER_RETURN_IF_ERROR(channel_.Repeat(
        IndexChannel::kWaiting, [&](Stub& stub, grpc::ClientContext& context) -> Status {
          records.clear();
          auto stream = stub.ListImages(&context, pb::ListImagesRequest());
          for (pb::ImageRecord message; stream->Read(&message);) {
            Result<ImageRecord> record = FromProto(message);
            if (!record.ok()) parsed = record.status();
            if (record.ok()) records.push_back(std::move(*record));
          }
          return channel_.Translate(stream->Finish());
        }));
    ESKER_RETURN_IF_ERROR(parsed);
    return records;
  }

  Result<std::vector<ImageId>> ListChildren(const ImageId& id) override {
    pb::ListChildrenRequest request;
    request.set_image(BytesOf(id));
    pb::ListChildrenResponse response;
    ESKER_RETURN_IF_ERROR(channel_.Repeat(&Stub::ListChildren, request, &response));
    return ImagesFrom(response.images());
  }

  // Once: done and then done again, it would say that there is no such image.
  Status DeleteImage(const ImageId& id, bool force) override {
    pb::DeleteImageRequest request;
    request.set_image(BytesOf(id));
    request.set_force(force);
    pb::DeleteImageResponse response;
    return channel_.Once(&Stub::DeleteImage, request, &response, IndexChannel::kWaiting);
  }

  Status SetTag(const std::string& name, const ImageId& id, const std::string& job) override {
    pb::SetTagRequest request;
    request.set_name(name);
    request.set_image(BytesOf(id));
    request.set_job(job);
    pb::SetTagResponse response;
    return channel_.Repeat(&Stub::SetTag, request, &response, IndexChannel::kWaiting);
  }

  Status DeleteTag(const std::string& name) override {
    pb::DeleteTagRequest request;
    request.set_name(name);
    pb::DeleteTagResponse response;
    return channel_.Once(&Stub::DeleteTag, request, &response, IndexChannel::kWaiting);
  }

  // --- leases and garbage collection
  Result<std::unique_ptr<Lease>> LeaseImage(const ImageId& id, const std::string& holder) override {
    return leases_.LeaseImage(id, holder);
  }
  void EnableGc() override { leases_.Complete(); }
  void GuardGc(std::function<Status(const GcOptions&)> guard) override { guard_ = !!guard; }

  Result<GcReport> CollectGarbage(const GcOptions& options) override {
    if (guard_) return UnimplementedError("a node cannot guard the index's garbage collection");
    pb::CollectGarbageRequest request;
    request.set_node(node_);
    request.set_grace_ns(options.grace_ns);
    pb::CollectGarbageResponse response;
    ESKER_RETURN_IF_ERROR(
        channel_.Once(&Stub::CollectGarbage, request, &response, IndexChannel::kWhole));
    return FromProto(response);
  }

  Result<RebuildReport> Rebuild(
      const std::function<void(uint64_t done, uint64_t total)>& on_progress) override {
    RebuildReport report;
    ESKER_RETURN_IF_ERROR(channel_.Once(
        IndexChannel::kWhole, [&](Stub& stub, grpc::ClientContext& context) -> Status {
          auto stream = stub.Rebuild(&context, pb::RebuildRequest());
          for (pb::RebuildEvent event; stream->Read(&event);) {
            if (event.finished()) report = FromProto(event);
            if (!event.finished() && on_progress) on_progress(event.done(), event.total());
          }
          return channel_.Translate(stream->Finish());
        }));
    return report;
  }

  Result<Stats> GetStats() override {
    pb::GetIndexStatsResponse response;
    ESKER_RETURN_IF_ERROR(
        channel_.Repeat(&Stub::GetIndexStats, pb::GetIndexStatsRequest(), &response));
    return FromProto(response);
  }
  Status CheckServing() override { return OkStatus(); }  // the index checks it at each call

 private:
  const std::string node_;
  IndexChannel channel_;
  NodeLeases leases_;
  bool guard_ = false;
};

}  // namespace

Result<std::unique_ptr<Index>> ConnectIndex(const RemoteIndexOptions& options) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("node id", options.node_id));
  if (options.address.rfind(':') == std::string::npos) {
    return InvalidArgumentError("the index's address " + options.address + ": want HOST:PORT");
  }
  return std::unique_ptr<Index>(std::make_unique<RemoteIndex>(options));
}

Result<uint64_t> NextNodeEpoch(const std::string& path) {
  uint64_t epoch = 0;
  if (PathExists(path)) {
    ESKER_ASSIGN_OR_RETURN(std::string text, ReadFileToString(path, 64));
    const char* end = text.data() + text.size();
    if (auto [stop, error] = std::from_chars(text.data(), end, epoch);
        error != std::errc() || stop == text.data()) {
      return DataLossError(path + " does not hold the number of the node's starts");
    }
  }
  ++epoch;
  ESKER_RETURN_IF_ERROR(ReplaceFileDurably(path, std::to_string(epoch)));
  return epoch;
}

}  // namespace esker
