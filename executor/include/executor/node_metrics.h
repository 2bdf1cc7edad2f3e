// NodeMetrics: what a node counts, for its metrics port (docs/operations.md lists what is shown).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/latency_histogram.h"
#include "executor/upper_store.h"
#include "imagefs/blob_server_types.h"
#include "snapshotter/index.h"

namespace esker {

struct NodeMetrics {
  std::string node_id;
  // Now.
  std::map<std::string, uint64_t> sandboxes;  // by state
  uint64_t commands_running = 0;
  uint64_t server_memory_bytes = 0, keeper_memory_bytes = 0, blob_server_memory_bytes = 0;
  uint64_t sandboxes_memory_bytes = 0;  // of all sandboxes' cgroups together
  std::optional<UpperSpace> uppers;
  // Since this server started.
  uint64_t creates = 0, create_failures = 0;
  HistogramCounts create_latency;        // of those that succeeded
  std::map<std::string, uint64_t> ends;  // by reason; Esker's own words only
  uint64_t commands_started = 0, commands_not_started = 0;
  std::map<std::string, uint64_t> commands_ended;  // by outcome
  // Absent: the blob server or the index did not answer.
  std::optional<BlobServerStats> blob_server;
  std::optional<Index::Stats> index;
};

}  // namespace esker
