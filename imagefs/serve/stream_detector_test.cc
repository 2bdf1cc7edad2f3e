#include "stream_detector.h"

#include <gtest/gtest.h>

namespace esker {
namespace {

constexpr uint64_t kRead = 128u << 10;

TEST(StreamDetector, ASequentialReaderIsSeenAfterHalfAMegabyteAndTheRangesDoNotOverlap) {
  StreamDetector detector;
  uint64_t fetched_to = 0;
  for (uint64_t at = 0; at < (64u << 20); at += kRead) {
    StreamDetector::Ahead ahead = detector.Note(at, kRead);
    if (at + kRead < (512u << 10)) {
      EXPECT_EQ(ahead.from, ahead.to);
      continue;
    }
    if (ahead.from == ahead.to) continue;
    EXPECT_GE(ahead.from, fetched_to);
    EXPECT_LE(ahead.to, at + kRead + (8u << 20));
    fetched_to = ahead.to;
  }
  EXPECT_GE(fetched_to, 64u << 20);
}

TEST(StreamDetector, RandomReadersAreNot) {
  StreamDetector detector;
  for (uint64_t i = 0; i < 1000; ++i) {
    StreamDetector::Ahead ahead = detector.Note((i * 7919 % 1000) * (1u << 20), 4096);
    EXPECT_EQ(ahead.from, ahead.to);
  }
}

TEST(StreamDetector, SeveralReadersAndSwappedRequestsAreFollowed) {
  StreamDetector detector;
  uint64_t ahead_bytes[3] = {};
  for (uint64_t step = 0; step < 64; ++step) {
    for (uint64_t reader = 0; reader < 3; ++reader) {
      const uint64_t swapped = step ^ 1;
      StreamDetector::Ahead ahead = detector.Note((reader << 30) + swapped * kRead, kRead);
      ahead_bytes[reader] += ahead.to - ahead.from;
    }
  }
  for (uint64_t bytes : ahead_bytes) EXPECT_GE(bytes, 8u << 20);
}

}  // namespace
}  // namespace esker
