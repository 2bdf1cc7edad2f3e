// NodeCounters: what a node has done since it was opened.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "base/latency_histogram.h"
#include "executor/init_client.h"

namespace esker {

// Thread-safe.
struct NodeCounters {
  std::atomic<uint64_t> creates{0}, create_failures{0};
  LatencyHistogram create_latency;
  std::atomic<uint64_t> commands_started{0}, commands_not_started{0};
  std::atomic<uint64_t> exited_zero{0}, exited_nonzero{0}, killed{0}, timed_out{0};

  void CommandEnded(const InitCommandStatus& status) {
    if (status.timed_out) {
      ++timed_out;
    } else if (status.signal != 0) {
      ++killed;
    } else {
      ++(status.exit_code == 0 ? exited_zero : exited_nonzero);
    }
  }
  void SandboxEnded(const std::string& reason) {
    std::lock_guard lock(mutex);
    // Reasons are words of ours, a dozen; a bound all the same.
    constexpr size_t kMostReasons = 32;
    if (ends.size() < kMostReasons || ends.contains(reason)) ++ends[reason];
  }

  mutable std::mutex mutex;
  std::map<std::string, uint64_t> ends;  // guarded by mutex
};

}  // namespace esker
