#include "control_convert.h"

#include <cstring>

namespace esker {
namespace {

void CountsToWire(const ReadCounts& in, wire::ReadCounters* out) {
  out->set_reads(in.reads);
  out->set_reads_from_cache(in.reads_from_cache);
  out->set_bytes_asked(in.bytes_asked);
  out->set_bytes_from_cache(in.bytes_from_cache);
  out->set_fetches(in.fetches);
  out->set_bytes_fetched(in.bytes_fetched);
  out->set_store_retries(in.store_retries);
  out->set_wrong_digests(in.wrong_digests);
  out->set_errors(in.errors);
}

ReadCounts CountsFromWire(const wire::ReadCounters& in) {
  ReadCounts out;
  out.reads = in.reads();
  out.reads_from_cache = in.reads_from_cache();
  out.bytes_asked = in.bytes_asked();
  out.bytes_from_cache = in.bytes_from_cache();
  out.fetches = in.fetches();
  out.bytes_fetched = in.bytes_fetched();
  out.store_retries = in.store_retries();
  out.wrong_digests = in.wrong_digests();
  out.errors = in.errors();
  return out;
}

void HistogramToWire(const HistogramCounts& in, wire::LatencyHistogram* out) {
  for (uint64_t bound : in.upper_bounds_us) out->add_upper_bounds_us(bound);
  for (uint64_t count : in.counts) out->add_counts(count);
  out->set_sum_us(in.sum_us);
}

Result<HistogramCounts> HistogramFromWire(const wire::LatencyHistogram& in) {
  HistogramCounts out;
  out.upper_bounds_us.assign(in.upper_bounds_us().begin(), in.upper_bounds_us().end());
  out.counts.assign(in.counts().begin(), in.counts().end());
  out.sum_us = in.sum_us();
  if (out.counts.size() != out.upper_bounds_us.size() + 1) {
    return InvalidArgumentError("a histogram with " + std::to_string(out.counts.size()) +
                                " counts for " + std::to_string(out.upper_bounds_us.size()) +
                                " bounds");
  }
  return out;
}

}  // namespace

std::string ToWire(const BlobId& id) { return std::string(id.digest.AsBytes()); }

Result<BlobId> FromWire(const std::string& bytes) {
  BlobId id;
  if (bytes.size() != id.digest.bytes.size()) {
    return InvalidArgumentError("a blob id has 32 bytes, not " + std::to_string(bytes.size()));
  }
  std::memcpy(id.digest.bytes.data(), bytes.data(), bytes.size());
  return id;
}

void ToWire(const BlobServerStats& stats, wire::GetStatsResponse* out) {
  CountsToWire(stats.counts, out->mutable_counters());
  HistogramToWire(stats.cached_reads, out->mutable_cached_reads());
  HistogramToWire(stats.fetched_reads, out->mutable_fetched_reads());
  out->set_blobs_completed(stats.blobs_completed);
  out->set_blobs_open(stats.blobs_open);
  out->set_uptime_ms(stats.uptime_ms);
  out->set_fetches_in_flight_bytes(stats.fetches_in_flight_bytes);
  out->set_prefetched_bytes(stats.prefetched_bytes);
  out->set_prefetches_running(stats.prefetches_running);
  out->set_readahead_bytes(stats.readahead_bytes);
  for (const BlobStats& blob : stats.blobs) {
    wire::BlobStats* one = out->add_blobs();
    one->set_blob(ToWire(blob.id));
    one->set_size_bytes(blob.size_bytes);
    one->set_complete(blob.complete);
    CountsToWire(blob.counts, one->mutable_counters());
  }
  if (!stats.cache) return;
  wire::CacheStats* cache = out->mutable_cache();
  cache->set_budget_bytes(stats.cache->budget_bytes);
  cache->set_used_bytes(stats.cache->used_bytes);
  cache->set_evicted_bytes(stats.cache->evicted_bytes);
  cache->set_evictions(stats.cache->evictions);
  cache->set_write_errors(stats.cache->write_errors);
}

Result<BlobServerStats> FromWire(const wire::GetStatsResponse& in) {
  BlobServerStats out;
  out.counts = CountsFromWire(in.counters());
  ESKER_ASSIGN_OR_RETURN(out.cached_reads, HistogramFromWire(in.cached_reads()));
  ESKER_ASSIGN_OR_RETURN(out.fetched_reads, HistogramFromWire(in.fetched_reads()));
  out.blobs_completed = in.blobs_completed();
  out.blobs_open = in.blobs_open();
  out.uptime_ms = in.uptime_ms();
  out.fetches_in_flight_bytes = in.fetches_in_flight_bytes();
  out.prefetched_bytes = in.prefetched_bytes();
  out.prefetches_running = in.prefetches_running();
  out.readahead_bytes = in.readahead_bytes();
  for (const wire::BlobStats& blob : in.blobs()) {
    BlobStats one;
    ESKER_ASSIGN_OR_RETURN(one.id, FromWire(blob.blob()));
    one.size_bytes = blob.size_bytes();
    one.complete = blob.complete();
    one.counts = CountsFromWire(blob.counters());
    out.blobs.push_back(std::move(one));
  }
  if (in.has_cache()) {
    out.cache =
        CacheStats{in.cache().budget_bytes(), in.cache().used_bytes(), in.cache().evicted_bytes(),
                   in.cache().evictions(), in.cache().write_errors()};
  }
  return out;
}

void ToWire(const BlobRanges& ranges, wire::BlobRanges* out) {
  out->set_blob(ToWire(ranges.blob));
  for (const ChunkRange& range : ranges.ranges) {
    wire::ChunkRange* one = out->add_ranges();
    one->set_first(range.first);
    one->set_count(range.count);
  }
}

Result<BlobRanges> FromWire(const wire::BlobRanges& in) {
  BlobRanges out;
  ESKER_ASSIGN_OR_RETURN(out.blob, FromWire(in.blob()));
  out.ranges.reserve(static_cast<size_t>(in.ranges_size()));
  for (const wire::ChunkRange& range : in.ranges()) {
    out.ranges.push_back({range.first(), range.count()});
  }
  return out;
}

void ToWire(const CachedBlob& blob, wire::CachedBlob* out) {
  out->set_blob(ToWire(blob.id));
  out->set_size_bytes(blob.size_bytes);
  out->set_cached_bytes(blob.cached_bytes);
  out->set_complete(blob.complete);
  out->set_mounted(blob.mounted);
  out->set_last_used_ms(blob.last_used_ms);
  out->set_directory(blob.directory);
}

Result<CachedBlob> FromWire(const wire::CachedBlob& in) {
  CachedBlob out;
  ESKER_ASSIGN_OR_RETURN(out.id, FromWire(in.blob()));
  out.size_bytes = in.size_bytes();
  out.cached_bytes = in.cached_bytes();
  out.complete = in.complete();
  out.mounted = in.mounted();
  out.last_used_ms = in.last_used_ms();
  out.directory = in.directory();
  return out;
}

void ToWire(const VerifiedBlob& blob, wire::VerifiedBlob* out) {
  out->set_blob(ToWire(blob.id));
  out->set_chunks_checked(blob.chunks_checked);
  out->set_chunks_dropped(blob.chunks_dropped);
  out->set_error(blob.error);
}

Result<VerifiedBlob> FromWire(const wire::VerifiedBlob& in) {
  VerifiedBlob out;
  ESKER_ASSIGN_OR_RETURN(out.id, FromWire(in.blob()));
  out.chunks_checked = in.chunks_checked();
  out.chunks_dropped = in.chunks_dropped();
  out.error = in.error();
  return out;
}

}  // namespace esker
