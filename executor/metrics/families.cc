#include "families.h"

#include <limits>
#include <string>
#include <utility>

namespace esker {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<std::pair<std::string, std::string>>;

// Collects families in the order in which they are first named.
class Builder {
 public:
  void Gauge(const char* name, const char* help, double value, const Labels& labels = {}) {
    Add(name, help, MetricType::Gauge, labels).gauge.value = value;
  }
  void Counter(const char* name, const char* help, uint64_t value, const Labels& labels = {}) {
    Add(name, help, MetricType::Counter, labels).counter.value = static_cast<double>(value);
  }
  void Histogram(const char* name, const char* help, const HistogramCounts& counts,
                 const Labels& labels = {}) {
    auto& histogram = Add(name, help, MetricType::Histogram, labels).histogram;
    uint64_t sum = 0;
    for (size_t i = 0; i < counts.counts.size(); ++i) {
      sum += counts.counts[i];
      const bool bounded = i < counts.upper_bounds_us.size();
      histogram.bucket.push_back({sum, bounded
                                           ? static_cast<double>(counts.upper_bounds_us[i]) / 1e6
                                           : std::numeric_limits<double>::infinity()});
    }
    histogram.sample_count = sum;
    histogram.sample_sum = static_cast<double>(counts.sum_us) / 1e6;
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  ClientMetric& Add(const char* name, const char* help, MetricType type, const Labels& labels) {
    if (families_.empty() || families_.back().name != name) {
      families_.push_back({name, help, type, {}});
    }
    ClientMetric& metric = families_.back().metric.emplace_back();
    for (const auto& [key, value] : labels) metric.label.push_back({key, value});
    return metric;
  }

  std::vector<MetricFamily> families_;
};

void AddSandboxes(const NodeMetrics& m, Builder& out) {
  for (const auto& [state, count] : m.sandboxes) {
    out.Gauge("esker_sandboxes", "Sandboxes by state.", static_cast<double>(count),
              {{"state", state}});
  }
  out.Counter("esker_sandbox_creates_total", "Sandboxes created.", m.creates);
  out.Counter("esker_sandbox_create_failures_total", "Creates that failed.", m.create_failures);
  out.Histogram("esker_sandbox_create_seconds", "Time of creates that succeeded.",
                m.create_latency);
  for (const auto& [reason, count] : m.ends) {
    out.Counter("esker_sandbox_ends_total", "Sandboxes ended, by reason.", count,
                {{"reason", reason}});
  }
  out.Gauge("esker_commands_running", "Commands that run.",
            static_cast<double>(m.commands_running));
  out.Counter("esker_commands_started_total", "Commands started.", m.commands_started);
  out.Counter("esker_commands_not_started_total", "Commands that init could not start.",
              m.commands_not_started);
  for (const auto& [outcome, count] : m.commands_ended) {
    out.Counter("esker_commands_ended_total", "Commands ended, by outcome.", count,
                {{"outcome", outcome}});
  }
}

void AddMemory(const NodeMetrics& m, Builder& out) {
  const std::pair<const char*, uint64_t> processes[] = {
      {"server", m.server_memory_bytes},
      {"keeper", m.keeper_memory_bytes},
      {"blob_server", m.blob_server_memory_bytes}};
  for (const auto& [process, bytes] : processes) {
    out.Gauge("esker_process_resident_bytes", "Resident memory of the node's processes.",
              static_cast<double>(bytes), {{"process", process}});
  }
  out.Gauge("esker_sandboxes_memory_bytes", "Memory of all sandboxes' cgroups.",
            static_cast<double>(m.sandboxes_memory_bytes));
  if (!m.uppers) return;
  out.Gauge("esker_upper_pool_bytes", "Size of the pool of writable trees.",
            static_cast<double>(m.uppers->total));
  out.Gauge("esker_upper_pool_available_bytes", "What new data can take of it.",
            static_cast<double>(m.uppers->available));
}

void AddReads(const BlobServerStats& s, Builder& out) {
  const ReadCounts& c = s.counts;
  out.Counter("esker_blob_reads_total", "READ requests of the kernel.", c.reads);
  out.Counter("esker_blob_cached_reads_total", "Those answered without the store.",
              c.reads_from_cache);
  out.Counter("esker_blob_read_bytes_total", "Bytes asked for.", c.bytes_asked);
  out.Counter("esker_blob_cached_read_bytes_total", "Bytes answered without the store.",
              c.bytes_from_cache);
  out.Histogram("esker_blob_read_seconds", "Time of reads, by where their bytes came from.",
                s.cached_reads, {{"source", "cache"}});
  out.Histogram("esker_blob_read_seconds", "Time of reads, by where their bytes came from.",
                s.fetched_reads, {{"source", "store"}});
  out.Counter("esker_blob_read_errors_total", "Reads answered with EIO.", c.errors);
  out.Counter("esker_blob_fetches_total", "Reads of packs.", c.fetches);
  out.Counter("esker_blob_fetched_bytes_total", "Bytes read from packs, as stored.",
              c.bytes_fetched);
  out.Counter("esker_blob_store_retries_total", "Reads of packs tried again.", c.store_retries);
  out.Counter("esker_blob_wrong_digests_total", "Chunks whose bytes were wrong at first.",
              c.wrong_digests);
}

void AddBlobServer(const NodeMetrics& m, Builder& out) {
  out.Gauge("esker_blob_server_up", "1: the blob server answers on its control socket.",
            m.blob_server ? 1 : 0);
  if (!m.blob_server) return;
  const BlobServerStats& s = *m.blob_server;
  out.Gauge("esker_blob_server_uptime_seconds", "Since the blob server started; its counters too.",
            static_cast<double>(s.uptime_ms) / 1000);
  AddReads(s, out);
  out.Gauge("esker_blob_fetches_in_flight_bytes", "Stored bytes that fetches hold in memory.",
            static_cast<double>(s.fetches_in_flight_bytes));
  out.Gauge("esker_blob_prefetches_running", "Recorded prefetches under way.",
            static_cast<double>(s.prefetches_running));
  out.Counter("esker_blob_prefetched_bytes_total", "Plain bytes kept by recorded prefetches.",
              s.prefetched_bytes);
  out.Counter("esker_blob_readahead_bytes_total", "Plain bytes kept by readahead.",
              s.readahead_bytes);
  out.Gauge("esker_blobs_open", "Blobs in the blob server's memory.",
            static_cast<double>(s.blobs_open));
  out.Counter("esker_blobs_completed_total", "Blobs that became complete on this node.",
              s.blobs_completed);
  // The blobs with the most bytes asked; the server sends at most twenty.
  for (const BlobStats& blob : s.blobs) {
    out.Counter("esker_top_blob_read_bytes_total", "Bytes asked for, of the blobs read most.",
                blob.counts.bytes_asked, {{"blob", blob.id.ToHex().substr(0, 16)}});
  }
  for (const BlobStats& blob : s.blobs) {
    out.Counter("esker_top_blob_fetched_bytes_total",
                "Bytes read from packs, of the blobs read most.", blob.counts.bytes_fetched,
                {{"blob", blob.id.ToHex().substr(0, 16)}});
  }
  if (!s.cache) return;
  out.Gauge("esker_cache_budget_bytes", "What the cache may hold; 0: no limit.",
            static_cast<double>(s.cache->budget_bytes));
  out.Gauge("esker_cache_used_bytes", "What the cache holds.",
            static_cast<double>(s.cache->used_bytes));
  out.Counter("esker_cache_evicted_bytes_total", "Bytes evicted.", s.cache->evicted_bytes);
  out.Counter("esker_cache_evictions_total", "Evictions.", s.cache->evictions);
  out.Counter("esker_cache_write_errors_total", "Writes to the cache that failed.",
              s.cache->write_errors);
}

void AddIndex(const NodeMetrics& m, Builder& out) {
  if (!m.index) return;
  out.Gauge("esker_store_bytes", "Bytes of all packs.", static_cast<double>(m.index->store_bytes));
  const std::pair<const char*, uint64_t> kinds[] = {{"packs", m.index->packs},
                                                    {"chunks", m.index->chunks},
                                                    {"blobs", m.index->blobs},
                                                    {"images", m.index->images},
                                                    {"tags", m.index->tags}};
  for (const auto& [kind, count] : kinds) {
    out.Gauge("esker_index_entries", "What the index knows.", static_cast<double>(count),
              {{"kind", kind}});
  }
}

}  // namespace

std::vector<MetricFamily> MakeFamilies(const NodeMetrics& metrics) {
  Builder out;
  out.Gauge("esker_node_info", "1; the label names the node.", 1, {{"node", metrics.node_id}});
  AddSandboxes(metrics, out);
  AddMemory(metrics, out);
  AddBlobServer(metrics, out);
  AddIndex(metrics, out);
  return out.Take();
}

}  // namespace esker
