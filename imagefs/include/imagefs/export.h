// Export: layers become OCI layer tars again, streaming, in constant memory but for a layer's
// metadata. imagefs/export/README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "imagefs/blob_map.h"
#include "imagefs/manifest.h"
#include "imagefs/store.h"

namespace esker {

enum class LayerCompression { kNone, kGzip, kZstd };
// "none", "gzip", "zstd"; INVALID_ARGUMENT otherwise.
Result<LayerCompression> ParseCompression(std::string_view name);

// Takes bytes in order; what it returns ends the export.
using ByteSink = std::function<Status(std::string_view bytes)>;

struct ExportSource {
  const Store& store;
  std::function<Result<BlobMap>(const BlobId&)> maps;
  std::function<bool()> cancelled;  // polled; may be empty
};

struct ExportedLayer {
  std::string media_type;
  std::string digest;   // "sha256:..." of the bytes as given
  std::string diff_id;  // "sha256:..." of the plain tar
  uint64_t size = 0;    // of the bytes as given
  uint64_t plain_size = 0;
  // What an OCI layer cannot hold and was left out: sockets. The first 100 paths, and how many.
  std::vector<std::string> left_out;
  uint64_t left_out_count = 0;
};

// The layer as a PAX tar. Deterministic: the same layer gives the same tar, and importing that
// gives the same metadata and data blobs (but for content that no name reaches any more). Every
// chunk is compared with its digest. FAILED_PRECONDITION: a name that OCI takes for a whiteout
// (".wh.x", possible in snapshots); DATA_LOSS; NOT_FOUND: a pack is not (yet) visible; CANCELLED.
Result<ExportedLayer> ExportLayer(const ExportSource& source, const ImageLayer& layer,
                                  LayerCompression compression, const ByteSink& sink);

// The OCI manifest and config of an image whose layers came out so.
struct OciDocuments {
  std::string manifest_json, config_json;
};
OciDocuments MakeOciDocuments(const Manifest& manifest, const std::vector<ExportedLayer>& layers);

}  // namespace esker
