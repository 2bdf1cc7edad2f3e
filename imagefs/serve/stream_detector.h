// StreamDetector: tells who reads a blob in order, and what such a reader will want next.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

namespace esker {

// Thread-safe; its mutex is a leaf. Knows the kStreams readers that were seen last.
class StreamDetector {
 public:
  struct Ahead {
    uint64_t from = 0, to = 0;  // equal: nothing
  };
  // A read came. Returns the range that should be fetched now: beyond what was returned before, and
  // growing with what the reader has read in order.
  Ahead Note(uint64_t offset, uint64_t size);

 private:
  static constexpr size_t kStreams = 8;
  static constexpr uint64_t kSlack = 256u << 10;  // requests of one reader come out of order
  static constexpr uint64_t kSequential = 512u << 10;
  static constexpr uint64_t kLeastWindow = 1u << 20;
  static constexpr uint64_t kLargestWindow = 8u << 20;

  struct Stream {
    uint64_t next = 0;
    uint64_t bytes = 0;  // read in order so far; 0: unused
    uint64_t ahead_to = 0;
    uint64_t used = 0;
  };
  std::mutex mutex_;  // guards what follows
  std::array<Stream, kStreams> streams_;
  uint64_t turn_ = 0;
};

}  // namespace esker
