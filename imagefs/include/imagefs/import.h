// Import: a tar stream or a directory becomes one layer, streaming, never unpacked on the host.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "imagefs/manifest.h"
#include "imagefs/pack.h"
#include "imagefs/store.h"
#include "imagefs/types.h"

namespace esker {

// A stream of bytes, pulled. Not thread-safe.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Up to `size` bytes into buffer; 0 at the end.
  virtual Result<size_t> Read(void* buffer, size_t size) = 0;
};
std::unique_ptr<ByteSource> FdSource(int fd);  // does not own fd

// Answers which chunks the store already has; pins them for the caller until it is destroyed, so
// that garbage collection cannot take them in between. Implemented by the index.
class ChunkLookup {
 public:
  virtual ~ChunkLookup() = default;
  virtual Result<bool> HasChunk(const ChunkRef& chunk) = 0;
  // The same for many, in their order: one round trip where the index is another process.
  virtual Result<std::vector<bool>> HasChunks(std::span<const ChunkRef> chunks) {
    std::vector<bool> known;
    known.reserve(chunks.size());
    for (const ChunkRef& chunk : chunks) {
      ESKER_ASSIGN_OR_RETURN(bool has, HasChunk(chunk));
      known.push_back(has);
    }
    return known;
  }
};

struct ImportProgress {
  uint64_t bytes_read = 0;          // of the source stream
  uint64_t bytes_plain = 0;         // file content seen
  uint64_t bytes_stored = 0;        // new compressed bytes
  uint64_t bytes_deduplicated = 0;  // file content that was stored already
  uint64_t entries = 0;
};

struct ImportOptions {
  std::string expected_digest;   // "sha256:.." of the stream as read, "" = do not check
  std::string expected_diff_id;  // "sha256:.." of the decompressed tar, "" = do not check
  // How long the stream will be, 0 if that is not known: a store that cannot hold what becomes of
  // it is refused before anything is read (RESOURCE_EXHAUSTED).
  uint64_t source_bytes = 0;
  std::function<void(const ImportProgress&)> on_progress;  // at most every 100 ms
  std::function<bool()> cancelled;                         // polled; true ends with CANCELLED
};

struct ImportedLayer {
  ImageLayer layer;
  PackWriter::Published pack;  // published and durable; the caller registers it with the index
  ImportProgress totals;
};

// gzip, zstd, xz or plain, recognised by content. Errors: DATA_LOSS (cut off, digest does not
// match), INVALID_ARGUMENT (refused content, naming the entry), RESOURCE_EXHAUSTED (store full).
Result<ImportedLayer> ImportTar(ByteSource& source, Store& store, ChunkLookup& lookup,
                                const ImportOptions& options);

enum class DirectoryKind {
  kPlain,         // any directory: names are names, trusted.* xattrs are not read
  kOverlayUpper,  // an overlayfs upper: 0:0 devices are whiteouts, trusted.overlay.opaque is kept,
                  // other trusted.overlay.* are dropped, owners are taken as they are on disk
};
// The tree below dirfd (links not followed, mounts not crossed). `extra_manifest`, called with the
// finished layer, may return a manifest that is published in the same pack (one fsync, one link).
Result<ImportedLayer> ImportDirectory(
    int dirfd, DirectoryKind kind, Store& store, ChunkLookup& lookup, const ImportOptions& options,
    const std::function<std::optional<std::string>(const ImageLayer&)>& extra_manifest = nullptr);

// --- OCI images (where they lie: imagefs/image_archive.h) -----------------------------------
struct OciLayer {
  std::string media_type;
  std::string digest;  // "sha256:..."
  uint64_t size = 0;
  std::string diff_id;
};
struct OciImage {
  std::string manifest_digest;
  ImageConfig config;
  std::vector<OciLayer> layers;  // lowest first
};
// Parses manifest and config bytes (untrusted; digests are checked by the caller that read them).
Result<OciImage> ParseOciImage(std::string_view manifest_json, std::string_view config_json);
}  // namespace esker
