// What a blob server has done since its start.
#pragma once

#include <atomic>
#include <cstdint>

namespace esker {

struct Counters {
  std::atomic<uint64_t> reads{0};
  std::atomic<uint64_t> reads_from_cache{0};  // answered without the store
  std::atomic<uint64_t> bytes_asked{0};
  std::atomic<uint64_t> fetches{0};        // reads of packs
  std::atomic<uint64_t> bytes_fetched{0};  // from packs, compressed
  std::atomic<uint64_t> store_retries{0};
  std::atomic<uint64_t> wrong_digests{0};
  std::atomic<uint64_t> errors{0};  // reads answered with EIO
  std::atomic<uint64_t> blobs_completed{0};

  void Log() const;
};

}  // namespace esker
