// BlobReader: answers ranges of blobs from the cache and the store, verified.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.h"
#include "counters.h"
#include "log_limiter.h"
#include "pack_source.h"
#include "served_blob.h"

namespace esker {

// What is wanted of a fetch group: these of its entries, ascending.
struct GroupWant {
  uint32_t group = 0;
  std::vector<uint32_t> entries;
};

// Thread-safe. Needs neither FUSE nor root.
class BlobReader {
 public:
  BlobReader(PackSource& packs, ServerCounters& counters, const Clock& clock = Clock::System())
      : packs_(packs), counters_(counters), clock_(clock), damage_(clock) {}

  // True: `out` holds the blob's bytes from `offset` on. Never touches the store. The range lies
  // inside the blob.
  bool ReadCached(ServedBlob& blob, uint64_t offset, std::span<uint8_t> out);

  // Fills `out` from cache and store and calls `answer` once, as early as its own bytes are there;
  // then goes on to verify and keep what else was fetched along. A store that fails is tried again
  // until the monotonic time given, and once in any case. Errors: DATA_LOSS (the store holds wrong
  // bytes), what the store said last, CANCELLED after Stop().
  using Answer = std::function<void(const Status&)>;
  void Read(ServedBlob& blob, uint64_t offset, std::span<uint8_t> out, int64_t deadline_nanos,
            const Answer& answer);

  // Brings chunks into the cache for which nobody waits: one try, one read of the pack for all of
  // `groups`, which follow each other there. Leaves out what is here or being fetched. Returns the
  // plain bytes that were kept; what the store said on failure.
  Result<uint64_t> FetchAhead(ServedBlob& blob, const std::shared_ptr<const BlobLayout>& layout,
                              std::span<const GroupWant> groups);

  // Ends all waiting for the store, now and from here on.
  void Stop();
  const std::atomic<bool>& stopping() const { return stopping_; }

 private:
  struct Range;
  Status ReadGroup(ServedBlob& blob, Range& range, uint32_t first, uint32_t end,
                   const std::shared_ptr<GroupFetch>& fetch, const Answer* answer_early);
  Status LoadWithRetries(ServedBlob& blob, GroupFetch& fetch, int64_t deadline_nanos);
  void KeepRest(ServedBlob& blob, GroupFetch& fetch);
  // False: stopping, or the chunk is damaged in the store.
  bool KeepOne(ServedBlob& blob, GroupFetch& fetch, uint32_t entry);
  struct Ahead;
  uint64_t KeepAhead(ServedBlob& blob, std::span<Ahead> fetches);
  bool Pause(int64_t nanos);  // false: stopping

  PackSource& packs_;
  ServerCounters& counters_;
  const Clock& clock_;
  LogLimiter damage_;
  std::atomic<bool> stopping_{false};
  std::mutex pause_mutex_;
  std::condition_variable pause_;
};

}  // namespace esker
