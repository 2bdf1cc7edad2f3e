#include "stream_detector.h"

#include <algorithm>

namespace esker {

StreamDetector::Ahead StreamDetector::Note(uint64_t offset, uint64_t size) {
  std::lock_guard lock(mutex_);
  ++turn_;
  Stream* oldest = &streams_[0];
  for (Stream& stream : streams_) {
    if (stream.used < oldest->used) oldest = &stream;
    if (stream.bytes == 0 || offset + kSlack < stream.next || offset > stream.next + kSlack) {
      continue;
    }
    stream.used = turn_;
    stream.next = std::max(stream.next, offset + size);
    stream.bytes += size;
    if (stream.bytes < kSequential) return {};
    const uint64_t window = std::clamp(stream.bytes, kLeastWindow, kLargestWindow);
    if (stream.next + window / 2 <= stream.ahead_to) return {};
    Ahead ahead{std::max(stream.next, stream.ahead_to), stream.next + window};
    stream.ahead_to = ahead.to;
    return ahead;
  }
  *oldest = {offset + size, size, 0, turn_};
  return {};
}

}  // namespace esker
