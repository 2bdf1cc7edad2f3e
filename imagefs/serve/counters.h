// What a blob server has done since its start, for all blobs and for each.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/latency_histogram.h"
#include "imagefs/blob_server_types.h"

namespace esker {

// Counts for a whole too, if it is part of one. Thread-safe.
class Tally {
 public:
  explicit Tally(Tally* whole = nullptr) : whole_(whole) {}
  void operator+=(uint64_t n) {
    value_.fetch_add(n, std::memory_order_relaxed);
    if (whole_ != nullptr) *whole_ += n;
  }
  void operator++() { *this += 1; }
  uint64_t load() const { return value_.load(std::memory_order_relaxed); }
  operator uint64_t() const { return load(); }

 private:
  std::atomic<uint64_t> value_{0};
  Tally* const whole_;
};

// Of one blob (then `whole` is the server's) or of the server. ReadCounts says what each means.
struct Counters {
  Counters() = default;
  explicit Counters(Counters* whole)
      : reads(whole ? &whole->reads : nullptr),
        reads_from_cache(whole ? &whole->reads_from_cache : nullptr),
        bytes_asked(whole ? &whole->bytes_asked : nullptr),
        bytes_from_cache(whole ? &whole->bytes_from_cache : nullptr),
        fetches(whole ? &whole->fetches : nullptr),
        bytes_fetched(whole ? &whole->bytes_fetched : nullptr),
        store_retries(whole ? &whole->store_retries : nullptr),
        wrong_digests(whole ? &whole->wrong_digests : nullptr),
        errors(whole ? &whole->errors : nullptr) {}

  Tally reads, reads_from_cache, bytes_asked, bytes_from_cache;
  Tally fetches, bytes_fetched, store_retries, wrong_digests, errors;

  ReadCounts Counts() const;
};

// Of the server as a whole.
struct ServerCounters : Counters {
  std::atomic<uint64_t> blobs_completed{0};
  std::atomic<uint64_t> in_flight_bytes{0};  // held by fetches now
  std::atomic<uint64_t> prefetched_bytes{0};
  std::atomic<uint64_t> readahead_bytes{0};
  LatencyHistogram cached_reads, fetched_reads;

  void Log() const;
};

}  // namespace esker
