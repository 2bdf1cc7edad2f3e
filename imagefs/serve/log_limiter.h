// LogLimiter: keeps an event that may come a thousand times a second from filling the log.
#pragma once

#include <cstdint>
#include <mutex>

#include "base/clock.h"

namespace esker {

// Lets kBurst events through per period. Thread-safe.
class LogLimiter {
 public:
  explicit LogLimiter(const Clock& clock) : clock_(clock) {}

  // True: log this one, and that `*suppressed` were not logged since the last that was.
  bool Allow(uint64_t* suppressed) {
    std::lock_guard lock(mutex_);
    const int64_t now = clock_.MonotonicNanos();
    if (now - period_start_ >= kPeriodNanos) {
      period_start_ = now;
      allowed_ = 0;
    }
    if (allowed_ == kBurst) {
      ++suppressed_;
      return false;
    }
    ++allowed_;
    *suppressed = suppressed_;
    suppressed_ = 0;
    return true;
  }

 private:
  static constexpr int kBurst = 5;
  static constexpr int64_t kPeriodNanos = 10'000'000'000;
  const Clock& clock_;
  std::mutex mutex_;  // guards what follows
  int64_t period_start_ = INT64_MIN / 2;
  int allowed_ = 0;
  uint64_t suppressed_ = 0;
};

}  // namespace esker
