// ServedBlob: one blob that the server knows: its layout, its cache file, the fetches under way.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "blob_layout.h"
#include "cache_file.h"
#include "counters.h"
#include "group_fetch.h"
#include "node_cache.h"
#include "stream_detector.h"

namespace esker {

class TouchLog;

// Thread-safe. Lock order: its mutex is a leaf.
class ServedBlob {
 public:
  // Reads and checks the map file. NOT_FOUND: there is none. DATA_LOSS: it is damaged, or another
  // blob's.
  static Result<std::shared_ptr<ServedBlob>> Load(NodeCache& cache, const BlobId& id,
                                                  Counters* whole = nullptr);
  // What happens with the blob is counted in `whole` too, which must outlive it.
  ServedBlob(NodeCache& cache, std::shared_ptr<const BlobLayout> layout, Counters* whole);

  const BlobId& id() const { return id_; }
  uint64_t size_bytes() const { return size_bytes_; }
  CacheFile& cache_file() { return *file_; }
  Counters& counters() { return counters_; }
  StreamDetector& streams() { return streams_; }
  std::shared_ptr<const BlobLayout> layout() const;
  // Reads the map file again: compaction moves chunks and grows its generation. True if there is a
  // newer one now.
  bool ReloadLayout();
  size_t MemoryBytes() const;

  // The fetch of `group` that is under way, or a new one that the caller then owns and must Leave.
  struct Joined {
    std::shared_ptr<GroupFetch> fetch;
    bool owner = false;
  };
  Joined Join(const std::shared_ptr<const BlobLayout>& layout, uint32_t group);
  void Leave(const GroupFetch& fetch);

  // Reads are noted in the log for as long as somebody else holds it.
  void AddLog(const std::shared_ptr<TouchLog>& log);
  void NoteRead(uint64_t offset, uint64_t size, int64_t now_nanos);

  // True once per time that all chunks are here: the caller then sees to CacheFile::Complete.
  bool TakeCompletion();
  // It may be tried again: it failed, or what was complete is not here any more.
  void CompletionEnded() { completion_taken_ = false; }
  bool complete() const { return file_->complete(); }

 private:
  NodeCache& cache_;
  const BlobId id_;
  const uint64_t size_bytes_;
  const std::shared_ptr<CacheFile> file_;
  Counters counters_;
  StreamDetector streams_;
  std::atomic<bool> completion_taken_{false};
  std::atomic<bool> logged_{false};  // logs_ may have one
  mutable std::mutex mutex_;         // guards what follows
  std::vector<std::weak_ptr<TouchLog>> logs_;
  std::shared_ptr<const BlobLayout> layout_;
  std::map<std::pair<const BlobLayout*, uint32_t>, std::shared_ptr<GroupFetch>> fetches_;
};

}  // namespace esker
