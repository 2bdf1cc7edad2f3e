// BlobFiles: the blobs as a flat FUSE directory.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "base/worker_pool.h"
#include "blob_reader.h"
#include "blob_registry.h"
#include "control_server.h"
#include "counters.h"
#include "fuse_session.h"
#include "log_limiter.h"
#include "prefetcher.h"
#include "read_watch.h"
#include "recordings.h"

namespace esker {

struct BlobFilesOptions {
  std::string store_directory;
  std::string cache_directory;  // the home: its settings name the others
  int64_t retry_deadline_ms = 20'000;
};

// Reads that the cache can answer are answered on the session's thread; all others go to a pool of
// their own, so a slow store never holds up what is here already.
class BlobFiles : public FuseFiles, public ServerControl {
 public:
  static constexpr size_t kFetchThreads = 16;

  explicit BlobFiles(const BlobFilesOptions& options);
  ~BlobFiles() override;

  Result<FuseFileAttributes> Lookup(std::string_view name) override;
  Result<FuseFileAttributes> Stat(uint64_t node) override;
  std::vector<Name> List() override;
  void Read(const FuseReadCall& call, const FuseDevice& device, const ReplyBuffer& buffer) override;
  // UNAVAILABLE when every fetch thread has been in one read for longer than any read may take:
  // they hang in the store, and nothing that is not cached will be served any more.
  Status Health() const override;

  BlobServerStats GetStats(size_t blobs) override;
  Status StartRecording(const std::string& name, const std::vector<BlobId>& blobs) override;
  Result<Recording> TakeRecording(const std::string& name, bool end) override;
  Result<uint64_t> Prefetch(const std::string& name,
                            const std::vector<BlobRanges>& ranges) override;
  void CancelPrefetch(const std::string& name) override;

  // Reads under way end without an answer: they are the next server's, who is sent them again.
  void Stop() { reader_.Stop(); }
  const ServerCounters& counters() const { return counters_; }
  BlobRegistry& registry() { return registry_; }
  CacheControl& cache() { return cache_; }
  // For a process that ends now: the cache is the next server's.
  void UnlockCache() { cache_.Unlock(); }

 private:
  struct StoreRead {
    std::shared_ptr<ServedBlob> blob;
    FuseReadCall call;
    FuseDevice device;
    int64_t came_nanos;
    int64_t deadline_nanos;
    std::shared_ptr<PendingRead> pending;
  };
  Result<std::shared_ptr<ServedBlob>> FindForRead(uint64_t node);
  void FetchRead(const StoreRead& read);
  void ReadFromStore(const StoreRead& read, const ReplyBuffer& buffer);
  void FailRead(const StoreRead& read, const Status& status);
  void ReadAhead(const std::shared_ptr<ServedBlob>& blob, const FuseReadCall& call);
  void StartCompletion(const std::shared_ptr<ServedBlob>& blob);
  void CompleteBlob(ServedBlob& blob);

  const BlobFilesOptions options_;
  const Clock& clock_ = Clock::System();
  const int64_t started_nanos_ = clock_.MonotonicNanos();
  ServerCounters counters_;
  NodeCache cache_;
  BlobRegistry registry_;
  PackSource packs_;
  BlobReader reader_;
  Recordings recordings_;
  LogLimiter failures_{clock_};
  DemandGate gate_;
  // When each fetch thread took the read it is in; 0: it is in none.
  std::array<std::atomic<int64_t>, kFetchThreads> busy_since_{};
  std::atomic<size_t> fetch_threads_seen_{0};
  // Last, so that their threads end before what they use.
  ReadWatch watch_;
  WorkerPool completions_{1, 4096};
  Prefetcher prefetcher_;
  WorkerPool fetches_;
};

}  // namespace esker
