#include "implicit_layers.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "imagefs/implicit_directories.h"
#include "imagefs/read_blob.h"

namespace esker {
namespace {

constexpr uint64_t kMaxMetadataBytes = uint64_t{1} << 30;  // as the importer's limit
constexpr uint64_t kMaxKeptBytes = uint64_t{64} << 20;

std::span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

class Resolver {
 public:
  Resolver(Store& store, Index& index, ImportSession& session)
      : store_(store), index_(index), session_(session) {}

  Status Run(std::vector<ImageLayer>& layers) {
    bool wanted = false;
    for (const ImageLayer& layer : layers) {
      ESKER_ASSIGN_OR_RETURN(const std::string start, ReadMetadata(layer, kBlockSize));
      if (!erofs::HasImplicitDirectories(Bytes(start))) continue;
      wanted = true;
      ESKER_ASSIGN_OR_RETURN(std::string image, ReadMetadata(layer, layer.metadata_bytes));
      ESKER_RETURN_IF_ERROR(directories_.Want(Bytes(image)));
      Keep(layer, std::move(image));
    }
    if (!wanted) return OkStatus();
    for (ImageLayer& layer : layers) {
      ESKER_ASSIGN_OR_RETURN(const std::string image, WholeMetadata(layer));
      ESKER_ASSIGN_OR_RETURN(const std::optional<std::string> mended,
                             directories_.Resolve(Bytes(image)));
      if (mended) ESKER_RETURN_IF_ERROR(Replace(layer, *mended));
    }
    return Publish();
  }

 private:
  Result<std::string> ReadMetadata(const ImageLayer& layer, uint64_t bytes) {
    if (layer.metadata_bytes > kMaxMetadataBytes) {
      return DataLossError("metadata of " + std::to_string(layer.metadata_bytes) + " bytes");
    }
    ESKER_ASSIGN_OR_RETURN(const BlobMap map, index_.GetBlobMap(layer.metadata));
    return ReadBlob(store_, map, bytes);
  }

  // Both passes need the images; small ones are read once.
  void Keep(const ImageLayer& layer, std::string image) {
    if (kept_bytes_ + image.size() > kMaxKeptBytes) return;
    kept_bytes_ += image.size();
    kept_.emplace(layer.metadata, std::move(image));
  }

  Result<std::string> WholeMetadata(const ImageLayer& layer) {
    auto kept = kept_.find(layer.metadata);
    if (kept != kept_.end()) return kept->second;
    return ReadMetadata(layer, layer.metadata_bytes);
  }

  Status Replace(ImageLayer& layer, const std::string& image) {
    if (pack_ == nullptr) {
      ESKER_ASSIGN_OR_RETURN(pack_, PackWriter::Create(store_));
    }
    BlobChunks blob;
    for (std::span<const uint8_t> rest = Bytes(image); !rest.empty();) {
      const std::span<const uint8_t> bytes =
          rest.first(std::min<size_t>(rest.size(), kMaxChunkSize));
      rest = rest.subspan(bytes.size());
      const ChunkRef ref = {Sha256::Of(bytes.data(), bytes.size()),
                            static_cast<uint32_t>(bytes.size())};
      blob.chunks.push_back(ref);
      ESKER_ASSIGN_OR_RETURN(const bool stored, session_.HasChunk(ref));
      if (!stored) ESKER_RETURN_IF_ERROR(pack_->AddChunk(ref, bytes));
    }
    layer.metadata = blob.Id();
    layer.metadata_bytes = image.size();
    pack_->AddBlob(std::move(blob));
    return OkStatus();
  }

  Status Publish() {
    if (pack_ == nullptr) return OkStatus();
    ESKER_ASSIGN_OR_RETURN(const PackWriter::Published published, pack_->Finish());
    return session_.RegisterPack(published);
  }

  Store& store_;
  Index& index_;
  ImportSession& session_;
  erofs::ImplicitDirectories directories_;
  std::map<BlobId, std::string> kept_;
  uint64_t kept_bytes_ = 0;
  std::unique_ptr<PackWriter> pack_;  // made when something has to be written
};

}  // namespace

Status ResolveImplicitDirectories(Store& store, Index& index, ImportSession& session,
                                  std::vector<ImageLayer>& layers) {
  return Resolver(store, index, session)
      .Run(layers)
      .Wrap("give directories that a layer does not mention their lower layer's attributes");
}

}  // namespace esker
