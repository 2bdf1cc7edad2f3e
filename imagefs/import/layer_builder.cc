#include "layer_builder.h"

#include <sys/statvfs.h>

#include <algorithm>

namespace esker::import_internal {
namespace {

constexpr std::chrono::milliseconds kReportEvery(100);
// A plain tar rarely shrinks to less, and most of a layer may be stored already: what is refused
// beforehand would hardly have had a chance. What runs out later is a typed error, too.
constexpr uint64_t kLeastPart = 4;
constexpr uint64_t kReserveBytes = 16u << 20;

Status CheckSpace(const Store& store, uint64_t source_bytes) {
  if (source_bytes == 0) return OkStatus();
  struct statvfs space = {};
  if (::statvfs(store.path().c_str(), &space) != 0) {
    return ErrnoError("look for free space in the store " + store.path());
  }
  const uint64_t free = uint64_t{space.f_bavail} * space.f_frsize;
  const uint64_t wanted = source_bytes / kLeastPart + kReserveBytes;
  if (free >= wanted) return OkStatus();
  return ResourceExhaustedError("the store " + store.path() + " has " + std::to_string(free) +
                                " bytes left; to import " + std::to_string(source_bytes) +
                                " bytes it should have " + std::to_string(wanted) +
                                ": remove images and collect garbage, or enlarge it");
}

}  // namespace

Result<std::unique_ptr<LayerBuilder>> LayerBuilder::Create(Store& store, ChunkLookup& lookup,
                                                           const ImportOptions& options) {
  ESKER_RETURN_IF_ERROR(CheckSpace(store, options.source_bytes));
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<PackWriter> pack, PackWriter::Create(store));
  return std::unique_ptr<LayerBuilder>(new LayerBuilder(std::move(pack), lookup, options));
}

LayerBuilder::LayerBuilder(std::unique_ptr<PackWriter> pack, ChunkLookup& lookup,
                           const ImportOptions& options)
    : options_(options),
      pack_(std::move(pack)),
      content_(*pack_, lookup, progress_, [this] { return Tick(); }),
      next_report_(std::chrono::steady_clock::now() + kReportEvery) {}

Status LayerBuilder::Tick() {
  if (options_.cancelled && options_.cancelled()) return CancelledError("the import was cancelled");
  if (!options_.on_progress) return OkStatus();
  auto now = std::chrono::steady_clock::now();
  if (now < next_report_) return OkStatus();
  next_report_ = now + kReportEvery;
  options_.on_progress(progress_);
  return OkStatus();
}

Result<ImportedLayer> LayerBuilder::Finish(ImageLayer layer, const ExtraManifest& extra_manifest) {
  ESKER_ASSIGN_OR_RETURN(BlobChunks data, content_.Finish());
  layer.data_bytes = content_.blob_bytes();
  if (layer.has_data()) {
    layer.data = data.Id();
    pack_->AddBlob(std::move(data));
  }
  ESKER_RETURN_IF_ERROR(StoreMetadata(layer));
  if (extra_manifest) {
    if (std::optional<std::string> manifest = extra_manifest(layer)) {
      pack_->AddManifest(std::move(*manifest));
    }
  }
  ESKER_RETURN_IF_ERROR(Tick());
  ImportedLayer imported;
  ESKER_ASSIGN_OR_RETURN(imported.pack, pack_->Finish());
  progress_.bytes_stored = pack_->stored_bytes();
  imported.layer = std::move(layer);
  imported.totals = progress_;
  if (options_.on_progress) options_.on_progress(progress_);
  return imported;
}

Status LayerBuilder::StoreMetadata(ImageLayer& layer) {
  erofs::WriteOptions options;
  options.data_device_bytes = layer.data_bytes;
  ESKER_ASSIGN_OR_RETURN(const std::string image, erofs::WriteMetadata(tree_, options));
  tree_ = erofs::Tree();  // large, and what follows needs memory of its own
  BlobChunks blob;
  // The counters are about file content.
  ImportProgress content_progress = progress_;
  std::span<const uint8_t> rest(reinterpret_cast<const uint8_t*>(image.data()), image.size());
  while (!rest.empty()) {
    std::span<const uint8_t> bytes = rest.first(std::min<size_t>(rest.size(), kMaxChunkSize));
    rest = rest.subspan(bytes.size());
    ChunkRef ref = {Sha256::Of(bytes.data(), bytes.size()), static_cast<uint32_t>(bytes.size())};
    ESKER_RETURN_IF_ERROR(content_.Store(ref, bytes));
    blob.chunks.push_back(ref);
  }
  ESKER_RETURN_IF_ERROR(content_.Flush());
  progress_ = content_progress;
  layer.metadata = blob.Id();
  layer.metadata_bytes = image.size();
  pack_->AddBlob(std::move(blob));
  return OkStatus();
}

}  // namespace esker::import_internal
