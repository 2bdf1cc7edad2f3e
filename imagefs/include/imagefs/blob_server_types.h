// What a node and its blob server say to each other, in plain types
// (proto/esker/internal/v1/blob_server.proto is how it travels).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/latency_histogram.h"
#include "imagefs/types.h"

namespace esker {

// Since the server started.
struct ReadCounts {
  uint64_t reads = 0;             // READ requests of the kernel
  uint64_t reads_from_cache = 0;  // answered without the store
  uint64_t bytes_asked = 0;
  uint64_t bytes_from_cache = 0;
  uint64_t fetches = 0;        // reads of packs
  uint64_t bytes_fetched = 0;  // from packs, as stored
  uint64_t store_retries = 0;
  uint64_t wrong_digests = 0;
  uint64_t errors = 0;  // reads answered with EIO
};

struct BlobStats {
  BlobId id;
  uint64_t size_bytes = 0;
  bool complete = false;
  ReadCounts counts;
};

struct CacheStats {
  uint64_t budget_bytes = 0;  // 0: none
  uint64_t used_bytes = 0;
  uint64_t evicted_bytes = 0;
  uint64_t evictions = 0;
  uint64_t write_errors = 0;
};

struct BlobServerStats {
  ReadCounts counts;
  HistogramCounts cached_reads;   // from a request's arrival to its answer
  HistogramCounts fetched_reads;  // those that needed the store
  uint64_t blobs_completed = 0;
  uint64_t blobs_open = 0;
  uint64_t uptime_ms = 0;
  uint64_t fetches_in_flight_bytes = 0;  // memory that fetches hold now
  uint64_t prefetched_bytes = 0;         // kept by prefetches, plain
  uint64_t prefetches_running = 0;
  uint64_t readahead_bytes = 0;  // kept by readahead, plain
  std::vector<BlobStats> blobs;  // those with the most bytes asked, that one first
  std::optional<CacheStats> cache;
};

// Chunks [first, first + count) of a blob, by their place in its list.
struct ChunkRange {
  uint32_t first = 0;
  uint32_t count = 0;
  auto operator<=>(const ChunkRange&) const = default;
};
struct BlobRanges {
  BlobId blob;
  std::vector<ChunkRange> ranges;  // ascending, apart
};

struct Recording {
  std::vector<BlobRanges> touched;
  uint64_t touched_bytes = 0;  // plain
  uint64_t quiet_ms = 0;       // since the last read of any of the blobs, or since the start
};

// --- the cache (`esker cache {ls,prune,verify}`) ----------------------------------------------

struct CachedBlob {
  BlobId id;
  uint64_t size_bytes = 0;
  uint64_t cached_bytes = 0;  // plain bytes that are here
  bool complete = false;
  bool mounted = false;      // its file is mounted without the server: never evicted
  int64_t last_used_ms = 0;  // wall clock, since 1970; 0: not known
  std::string directory;     // the cache directory it lies in
};

struct PruneRequest {
  uint64_t keep_bytes = 0;    // evict the least recently used until this much is left
  int64_t unused_for_ms = 0;  // and whatever was not used for so long; 0: no such rule
  bool dry_run = false;
};
struct PruneReport {
  uint64_t freed_bytes = 0;
  uint64_t kept_bytes = 0;
  uint64_t blobs_touched = 0;
};

struct VerifiedBlob {
  BlobId id;
  uint64_t chunks_checked = 0;
  uint64_t chunks_dropped = 0;  // wrong bytes: they are fetched again when needed
  std::string error;            // it could not be checked
};

}  // namespace esker
