// Which host id ranges are free. Each living sandbox has one of its own; the kernel object that an
// ended one leaves behind (a file with its owner) must be gone before its range is used again.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>

#include "base/status.h"

namespace esker {

// Thread-safe. Gives out the lowest free number, so that the keeper's cached user namespaces of
// low ranges are used again.
class IdRanges {
 public:
  explicit IdRanges(uint32_t count) : count_(count) {}
  // RESOURCE_EXHAUSTED when all are taken.
  Result<uint32_t> Take();
  // ALREADY_EXISTS when it is taken, OUT_OF_RANGE when there is no such range.
  Status TakeNumber(uint32_t range);
  void Free(uint32_t range);

 private:
  const uint32_t count_;
  std::mutex mutex_;         // guards the rest
  uint32_t unused_ = 0;      // this and all above were never taken ...
  std::set<uint32_t> free_;  // ... and of those below, these are free
};

}  // namespace esker
