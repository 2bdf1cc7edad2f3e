// Recordings: which chunks of which blobs are read while a sandbox starts.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "blob_registry.h"
#include "imagefs/blob_server_types.h"

namespace esker {

// The chunks of one blob that were read since the log was made. Thread-safe.
class TouchLog {
 public:
  TouchLog(std::shared_ptr<const BlobLayout> layout, int64_t now_nanos);

  void Touch(uint64_t offset, uint64_t size, int64_t now_nanos);
  // Ascending, apart; adds their plain bytes to `*bytes`.
  std::vector<ChunkRange> Ranges(uint64_t* bytes) const;
  int64_t last_nanos() const { return last_nanos_; }

 private:
  const std::shared_ptr<const BlobLayout> layout_;  // chunks keep their numbers in every layout
  std::vector<std::atomic<bool>> touched_;
  std::atomic<int64_t> last_nanos_;
};

// Thread-safe. Lock order: its mutex, then the registry's.
class Recordings {
 public:
  static constexpr size_t kMost = 64;
  // A recording that nobody takes (its node died) goes after this long.
  static constexpr int64_t kForgottenNanos = 600'000'000'000;

  Recordings(BlobRegistry& registry, const Clock& clock) : registry_(registry), clock_(clock) {}

  // Those of `blobs` that are not known here are left out. RESOURCE_EXHAUSTED: there are kMost.
  Status Start(const std::string& name, const std::vector<BlobId>& blobs);
  // NOT_FOUND: none of that name.
  Result<Recording> Take(const std::string& name, bool end);

 private:
  struct Entry {
    int64_t started_nanos = 0;
    // The blobs are held, since a blob that is forgotten and loaded again has no logs.
    std::vector<std::pair<std::shared_ptr<ServedBlob>, std::shared_ptr<TouchLog>>> logs;
  };

  BlobRegistry& registry_;
  const Clock& clock_;
  std::mutex mutex_;  // guards what follows
  std::map<std::string, Entry> entries_;
};

}  // namespace esker
