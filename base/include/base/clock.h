// Time, passed in so that tests can turn it.
#pragma once

#include <atomic>
#include <cstdint>

namespace esker {

// Nanoseconds. Wall time counts from 1970 UTC and may jump; monotonic time only grows and means
// nothing outside this boot. Implementations are thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t WallNanos() const = 0;
  virtual int64_t MonotonicNanos() const = 0;

  static Clock& System();
};

class FakeClock : public Clock {
 public:
  int64_t WallNanos() const override { return wall_.load(); }
  int64_t MonotonicNanos() const override { return monotonic_.load(); }
  void Advance(int64_t nanos) {
    wall_ += nanos;
    monotonic_ += nanos;
  }

 private:
  std::atomic<int64_t> wall_{1'700'000'000'000'000'000};
  std::atomic<int64_t> monotonic_{1'000'000'000};
};

}  // namespace esker
