// LatencyHistogram: counts durations in fixed buckets, from any thread, without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace esker {

struct HistogramCounts {
  std::vector<uint64_t> upper_bounds_us;  // ascending
  std::vector<uint64_t> counts;           // one per bound, and one for what is above all of them
  uint64_t sum_us = 0;
};

class LatencyHistogram {
 public:
  static constexpr std::array<uint64_t, 18> kUpperBoundsUs = {
      25,     50,     100,     250,     500,       1'000,     2'500,     5'000,      10'000,
      25'000, 50'000, 100'000, 250'000, 1'000'000, 2'500'000, 5'000'000, 10'000'000, 30'000'000};

  void Add(int64_t nanos) {
    const uint64_t us = nanos > 0 ? static_cast<uint64_t>(nanos) / 1000 : 0;
    size_t bucket = 0;
    while (bucket < kUpperBoundsUs.size() && us > kUpperBoundsUs[bucket]) ++bucket;
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_us_.fetch_add(us, std::memory_order_relaxed);
  }
  // Not one instant: a duration added meanwhile may be in one part and not in another.
  HistogramCounts Counts() const {
    HistogramCounts out;
    out.upper_bounds_us.assign(kUpperBoundsUs.begin(), kUpperBoundsUs.end());
    for (const auto& count : counts_) out.counts.push_back(count.load(std::memory_order_relaxed));
    out.sum_us = sum_us_.load(std::memory_order_relaxed);
    return out;
  }

 private:
  std::array<std::atomic<uint64_t>, kUpperBoundsUs.size() + 1> counts_{};
  std::atomic<uint64_t> sum_us_{0};
};

}  // namespace esker
