#include "start_record.h"

#include <gtest/gtest.h>

#include <random>

namespace esker {
namespace {

BlobId Blob(uint8_t first) {
  BlobId id;
  id.digest.bytes[0] = first;
  return id;
}

TEST(StartRecord, ComesBackAsItWasWritten) {
  StartRecord record;
  record.starts = 2;
  record.touched = {{Blob(1), {{0, 3}, {7, 1}}}, {Blob(9), {{4'000'000, 12}}}};
  Result<StartRecord> read = StartRecord::Parse(record.Serialise());
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->starts, 2u);
  ASSERT_EQ(read->touched.size(), 2u);
  EXPECT_EQ(read->touched[0].ranges, record.touched[0].ranges);
  EXPECT_EQ(read->touched[1].blob, Blob(9));
  EXPECT_EQ(read->chunks(), 16u);
}

TEST(StartRecord, MergingIsTheUnionAndStaysBounded) {
  StartRecord record;
  record.Merge({{Blob(2), {{5, 5}, {20, 1}}}});
  record.Merge({{Blob(1), {{1, 1}}}, {Blob(2), {{8, 4}, {12, 2}, {0, 0}}}});
  ASSERT_EQ(record.touched.size(), 2u);
  EXPECT_EQ(record.touched[0].blob, Blob(1));
  EXPECT_EQ(record.touched[1].ranges, (std::vector<ChunkRange>{{5, 9}, {20, 1}}));
  BlobRanges many{Blob(3), {}};
  for (uint32_t i = 0; i < 2 * StartRecord::kMostRanges; ++i) many.ranges.push_back({i * 2, 1});
  record.Merge({many});
  record.starts = 1;
  EXPECT_TRUE(StartRecord::Parse(record.Serialise()).ok());
}

TEST(StartRecord, HostileBytesAreRefused) {
  StartRecord record;
  record.starts = 1;
  record.touched = {{Blob(1), {{0, 3}, {7, 1}}}, {Blob(9), {{4, 12}}}};
  const std::string good = record.Serialise();
  for (size_t cut = 0; cut < good.size(); ++cut) {
    EXPECT_FALSE(StartRecord::Parse(good.substr(0, cut)).ok()) << cut;
  }
  EXPECT_FALSE(StartRecord::Parse(good + "x").ok());
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    for (int n = 0; n < 3; ++n) bytes[random() % bytes.size()] = static_cast<char>(random());
    Result<StartRecord> read = StartRecord::Parse(bytes);  // must not crash
    if (read.ok()) {
      EXPECT_LE(read->touched.size(), 2u);
    }
  }
  record.starts = 4;
  EXPECT_EQ(StartRecord::Parse(record.Serialise()).status().code(), Code::kDataLoss);
  record.starts = 1;
  record.touched[0].ranges = {{7, 1}, {0, 3}};
  EXPECT_EQ(StartRecord::Parse(record.Serialise()).status().code(), Code::kDataLoss);
  record.touched[0].ranges = {{UINT32_MAX, 1}};
  EXPECT_EQ(StartRecord::Parse(record.Serialise()).status().code(), Code::kDataLoss);
}

}  // namespace
}  // namespace esker
