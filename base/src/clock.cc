#include "base/clock.h"

#include <ctime>

namespace esker {
namespace {

int64_t Now(clockid_t id) {
  timespec ts;
  clock_gettime(id, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

class SystemClock : public Clock {
 public:
  int64_t WallNanos() const override { return Now(CLOCK_REALTIME); }
  // BOOTTIME, so that a suspended machine's deadlines still pass.
  int64_t MonotonicNanos() const override { return Now(CLOCK_BOOTTIME); }
};

}  // namespace

Clock& Clock::System() {
  static SystemClock clock;
  return clock;
}

}  // namespace esker
