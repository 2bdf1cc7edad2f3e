// CacheFile: what of one blob is on this node's disks, whichever directory that is in now.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>

#include "base/status.h"
#include "blob_copy.h"

namespace esker {

class NodeCache;

// Finds its copy when it is made, gets one when something is to be kept, and lets go of one that is
// not what it was: its bytes are then fetched again. Any trouble with the disks means that chunks
// are not here; nothing fails. Thread-safe; one object per blob and server (NodeCache::File).
class CacheFile {
 public:
  // `cache` must outlive it.
  CacheFile(NodeCache& cache, std::shared_ptr<const BlobLayout> layout);

  const BlobId& id() const { return layout_->map().id; }
  // True: `out` holds the blob's bytes from `offset` on, gaps as zeros. [first, end) are the
  // entries that the range touches.
  bool Read(const BlobLayout&, uint32_t first, uint32_t end, uint64_t offset,
            std::span<uint8_t> out);
  bool Has(uint32_t chunk) const;
  // Whether Keep() would try to.
  bool Keeps() const;
  // `bytes` are the chunk's, verified. Within the cache's budget only.
  void Keep(const BlobLayout&, uint32_t chunk, std::span<const uint8_t> bytes);
  bool AllPresent() const;
  // The whole blob is here and may be mounted by itself.
  bool complete() const;
  // BlobCopy::Complete. FAILED_PRECONDITION when there is no copy.
  Status Complete(const BlobLayout&, const std::atomic<bool>& stop);

  // Null: nothing is here.
  std::shared_ptr<BlobCopy> copy() const;
  // Removes the copy's names; its bytes are fetched again when they are needed.
  Status Drop(const std::shared_ptr<BlobCopy>& copy);

 private:
  std::shared_ptr<BlobCopy> CopyToWrite();

  NodeCache& cache_;
  const std::shared_ptr<const BlobLayout> layout_;
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<BlobCopy> copy_;
};

}  // namespace esker
