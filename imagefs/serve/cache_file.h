// CacheFile: the part of one blob that is on this node's disk.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "blob_layout.h"
#include "imagefs/cache_layout.h"
#include "presence_map.h"

namespace esker {

// Whether the cache's disk takes writes. Shared by all blobs of a server: after an error writing
// pauses for a while, so that a full disk costs a log line and not a failing write per read.
// Thread-safe.
class CacheHealth {
 public:
  explicit CacheHealth(const Clock& clock) : clock_(clock) {}
  bool Writable() const { return clock_.MonotonicNanos() >= paused_until_.load(); }
  void ReportWriteError(const Status& status);

 private:
  static constexpr int64_t kPauseNanos = 30'000'000'000;
  const Clock& clock_;
  std::atomic<int64_t> paused_until_{INT64_MIN};
};

// Holds verified bytes only: Keep() is given verified bytes, and what an earlier process left is
// compared with its digest before its first use. Any trouble with the files means that chunks are
// not here; no method fails. Thread-safe; one process at a time.
class CacheFile {
 public:
  // `health` must outlive it.
  CacheFile(const CacheLayout& cache, const BlobLayout& layout, CacheHealth& health);

  // True: `out` holds the blob's bytes from `offset` on, gaps as zeros. [first, end) are the
  // entries that the range touches.
  bool Read(const BlobLayout& layout, uint32_t first, uint32_t end, uint64_t offset,
            std::span<uint8_t> out);
  bool Has(uint32_t chunk) const { return presence_.Get(chunk) != Presence::kAbsent; }
  // Whether Keep() would try to.
  bool Keeps() const { return data_.valid() && health_.Writable(); }
  // `bytes` are the chunk's, verified.
  void Keep(const BlobLayout& layout, uint32_t chunk, std::span<const uint8_t> bytes);
  bool AllPresent() const { return presence_.AllPresent(); }

  // Makes all bytes durable, drops them from memory, reads them from the disk, compares every
  // digest, and records that the blob is complete. DATA_LOSS when a chunk was wrong: it is then
  // absent again. FAILED_PRECONDITION when the file is no longer the one in the directory.
  Status Complete(const BlobLayout& layout, const std::atomic<bool>& stop);

 private:
  Status OpenData();
  bool ReadRange(uint64_t offset, std::span<uint8_t> out);
  bool Prove(const BlobLayout& layout, uint32_t chunk);
  void Drop(uint32_t chunk);

  const CacheLayout cache_;
  const BlobId id_;
  const uint64_t size_bytes_;
  CacheHealth& health_;
  UniqueFd data_;  // empty: nothing can be kept
  PresenceMap presence_;
};

}  // namespace esker
