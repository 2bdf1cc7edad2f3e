#include "id_ranges.h"

#include <string>

namespace esker {

Result<uint32_t> IdRanges::Take() {
  std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    uint32_t range = *free_.begin();
    free_.erase(free_.begin());
    return range;
  }
  if (unused_ == count_) {
    return ResourceExhaustedError("all " + std::to_string(count_) +
                                  " host id ranges are in use; delete sandboxes and try again");
  }
  return unused_++;
}

Status IdRanges::TakeNumber(uint32_t range) {
  std::lock_guard lock(mutex_);
  if (range >= count_) {
    return OutOfRangeError("host id range " + std::to_string(range) + " of " +
                           std::to_string(count_));
  }
  while (unused_ <= range) free_.insert(unused_++);
  if (free_.erase(range) == 0) {
    return AlreadyExistsError("host id range " + std::to_string(range) + " is taken");
  }
  return OkStatus();
}

void IdRanges::Free(uint32_t range) {
  std::lock_guard lock(mutex_);
  if (range < unused_) free_.insert(range);
}

}  // namespace esker
