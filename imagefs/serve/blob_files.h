// BlobFiles: the blobs as a flat FUSE directory.
#pragma once

#include <memory>
#include <string>

#include "base/worker_pool.h"
#include "blob_reader.h"
#include "blob_registry.h"
#include "counters.h"
#include "fuse_session.h"
#include "log_limiter.h"
#include "read_watch.h"

namespace esker {

struct BlobFilesOptions {
  std::string store_directory;
  CacheLayout cache;
  int fetch_threads = 16;
  int64_t retry_deadline_ms = 20'000;
};

// Reads that the cache can answer are answered on the session's thread; all others go to a pool of
// their own, so a slow store never holds up what is here already.
class BlobFiles : public FuseFiles {
 public:
  explicit BlobFiles(const BlobFilesOptions& options);
  ~BlobFiles() override;

  Result<FuseFileAttributes> Lookup(std::string_view name) override;
  Result<FuseFileAttributes> Stat(uint64_t node) override;
  std::vector<Name> List() override;
  void Read(const FuseReadCall& call, const FuseDevice& device, const ReplyBuffer& buffer) override;

  // Reads under way end without an answer: they are the next server's, who is sent them again.
  void Stop() { reader_.Stop(); }
  const Counters& counters() const { return counters_; }

 private:
  struct StoreRead {
    std::shared_ptr<ServedBlob> blob;
    FuseReadCall call;
    FuseDevice device;
    int64_t deadline_nanos;
    std::shared_ptr<PendingRead> pending;
  };
  void ReadFromStore(const StoreRead& read, const ReplyBuffer& buffer);
  void FailRead(const StoreRead& read, const Status& status);
  void StartCompletion(const std::shared_ptr<ServedBlob>& blob);
  void CompleteBlob(ServedBlob& blob);

  const BlobFilesOptions options_;
  const Clock& clock_ = Clock::System();
  Counters counters_;
  CacheHealth health_{clock_};
  BlobRegistry registry_;
  PackSource packs_;
  BlobReader reader_;
  LogLimiter failures_{clock_};
  // Last, so that their threads end before what they use.
  ReadWatch watch_;
  WorkerPool completions_{1, 4096};
  WorkerPool fetches_;
};

}  // namespace esker
