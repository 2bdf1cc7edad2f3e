// Prefetcher: fetches in the background what will be read soon.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/worker_pool.h"
#include "blob_reader.h"
#include "blob_registry.h"
#include "imagefs/blob_server_types.h"

namespace esker {

// How many reads wait for the store now: what is fetched ahead stands back for them. Thread-safe.
class DemandGate {
 public:
  void Enter() { ++waiting_; }
  void Leave() {
    if (--waiting_ <= kBusy) calm_.notify_all();
  }
  // Until few reads wait, at most 50 ms: ahead is behind, but does not starve.
  void WaitForCalm();

 private:
  static constexpr int kBusy = 4;
  std::atomic<int> waiting_{0};
  std::mutex mutex_;
  std::condition_variable calm_;
};

// Thread-safe. At most kThreads reads of packs of at most kMaxRun bytes each are under way, for
// prefetches and readahead together. Errors of the store end a prefetch, and no read.
// Lock order: its mutex, then a job's; none is held while fetching.
class Prefetcher {
 public:
  static constexpr size_t kThreads = 8;
  static constexpr size_t kMostJobs = 256;
  static constexpr uint32_t kMaxRun = 1u << 20;         // stored bytes read at once
  static constexpr uint64_t kMostBytes = 512ull << 20;  // plain, of one prefetch
  static constexpr uint64_t kMostAhead = 32ull << 20;   // plain bytes of readahead queued

  Prefetcher(BlobRegistry& registry, BlobReader& reader, ServerCounters& counters, DemandGate& gate)
      : registry_(registry), reader_(reader), counters_(counters), gate_(gate) {}

  // Queues the chunks that are not here, in the order of the packs. Returns their plain bytes.
  // Ranges outside a blob are ignored. RESOURCE_EXHAUSTED: there are kMostJobs.
  Result<uint64_t> Start(const std::string& name, const std::vector<BlobRanges>& ranges);
  void Cancel(const std::string& name);
  size_t running() const;

  // Readahead: the groups [first, end) of the blob, if the budget allows it.
  void FetchSoon(const std::shared_ptr<ServedBlob>& blob,
                 const std::shared_ptr<const BlobLayout>& layout, uint32_t first, uint32_t end);

 private:
  // Groups that follow each other in a pack, read at once.
  struct Run {
    std::shared_ptr<ServedBlob> blob;
    std::shared_ptr<const BlobLayout> layout;
    std::vector<GroupWant> groups;
  };
  struct Job {
    std::atomic<bool> cancelled{false};
    std::mutex mutex;       // guards what follows
    std::vector<Run> runs;  // from the back
    size_t active = 0;      // runners
  };

  static void AddRuns(const std::shared_ptr<ServedBlob>& blob,
                      const std::shared_ptr<const BlobLayout>& layout,
                      const std::vector<uint32_t>& entries, std::vector<Run>* runs);
  void RunNext(const std::string& name, const std::shared_ptr<Job>& job);
  void EndRunner(const std::string& name, const std::shared_ptr<Job>& job);

  BlobRegistry& registry_;
  BlobReader& reader_;
  ServerCounters& counters_;
  DemandGate& gate_;
  std::atomic<uint64_t> ahead_bytes_{0};
  mutable std::mutex mutex_;  // guards jobs_
  std::map<std::string, std::shared_ptr<Job>> jobs_;
  // Last, so that its threads end before what they use.
  WorkerPool workers_{kThreads, 65536};
};

}  // namespace esker
