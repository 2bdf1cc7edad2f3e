// PresenceMap: which chunks of a blob the cache file is believed to hold. docs/formats/cache.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "imagefs/types.h"

namespace esker {

enum class Presence : uint8_t {
  kAbsent,
  kRecorded,  // written by an earlier process, or touched by another: a claim, to be proved
  kVerified,  // this process wrote it, or has compared its digest
};

// The file is a hint that saves fetches; correctness never rests on it, so it needs no sync and a
// lost, stale or damaged one does no harm. Thread-safe.
class PresenceMap {
 public:
  // Reads the file, or makes a new one when it is missing or not this blob's. When that cannot be
  // done the map lives in memory only; `file_status()` says why.
  PresenceMap(const std::string& path, const BlobId& id, uint32_t chunk_count);
  // Of a file that is said to be whole: all recorded, in memory only.
  explicit PresenceMap(uint32_t chunk_count);

  Presence Get(uint32_t chunk) const { return states_[chunk].load(std::memory_order_acquire); }
  void SetVerified(uint32_t chunk);
  // After a digest was right: only what is recorded still, since it may have been cleared
  // meanwhile.
  void Prove(uint32_t chunk);
  void Clear(uint32_t chunk);
  void ClearAll();
  // Verified becomes recorded.
  void DistrustAll();

  uint32_t chunk_count() const { return static_cast<uint32_t>(states_.size()); }
  uint32_t present() const { return static_cast<uint32_t>(present_.load()); }
  bool AllPresent() const { return present_.load() == states_.size(); }
  const Status& file_status() const { return file_status_; }

  // The file's time says when the blob was used last, for the next process. Wall clock; 0: unknown.
  int64_t used_ms() const { return used_ms_; }  // as found
  void RecordUse(int64_t wall_ms);

 private:
  Status LoadFile(const std::string& path, const std::string& header);
  void Change(uint32_t chunk, Presence to);

  std::vector<std::atomic<Presence>> states_;
  std::atomic<size_t> present_{0};
  std::mutex mutex_;           // guards what follows
  std::vector<uint8_t> bits_;  // as in the file
  UniqueFd file_;              // empty: in memory only
  Status file_status_;
  int64_t used_ms_ = 0;
};

}  // namespace esker
