#include "blob_layout.h"

#include <gtest/gtest.h>

namespace esker {
namespace {

PackId Pack(uint8_t n) {
  PackId id;
  id.digest.bytes[0] = n;
  return id;
}

struct Spec {
  uint8_t pack;
  uint64_t frame_offset;
  uint32_t stored;
  uint32_t plain;
  uint32_t length;
};

BlobLayout Make(const std::vector<Spec>& specs) {
  BlobChunks list;
  std::vector<ChunkLocation> locations;
  for (const Spec& spec : specs) {
    ChunkRef ref;
    ref.digest.bytes[0] = static_cast<uint8_t>(list.chunks.size());
    ref.length = spec.length;
    list.chunks.push_back(ref);
    ChunkLocation where;
    where.pack = Pack(spec.pack);
    where.frame_offset = spec.frame_offset;
    where.frame_stored = spec.stored;
    where.frame_plain = spec.plain;
    locations.push_back(where);
  }
  return BlobLayout(BlobMap::Make(list, locations));
}

TEST(BlobLayout, FindsTheEntriesOfARange) {
  BlobLayout layout = Make({{1, 0, 10, 100, 100}, {1, 10, 10, 5000, 5000}, {1, 20, 10, 1, 1}});
  using Pair = std::pair<uint32_t, uint32_t>;
  ASSERT_EQ(layout.map().size_bytes, 4096u + 8192 + 4096);
  EXPECT_EQ(layout.EntriesIn(0, 1), Pair(0, 1));
  EXPECT_EQ(layout.EntriesIn(4095, 1), Pair(0, 1));  // in the gap
  EXPECT_EQ(layout.EntriesIn(4095, 2), Pair(0, 2));
  EXPECT_EQ(layout.EntriesIn(4096, 8192), Pair(1, 2));
  EXPECT_EQ(layout.EntriesIn(12287, 2), Pair(1, 3));
  EXPECT_EQ(layout.EntriesIn(0, 16384), Pair(0, 3));
}

TEST(BlobLayout, GroupsFramesThatFollowEachOther) {
  BlobLayout layout = Make({
      {1, 100, 50, 300, 100},
      {1, 100, 50, 300, 200},                    // the same frame
      {1, 150, 1000, 1000, 1000},                // the next
      {2, 1150, 10, 10, 10},                     // another pack
      {1, 2000, 10, 10, 10},                     // back
      {1, 1000, 10, 10, 10},                     // before: map order and pack order disagree
      {1, 1010 + kMaxGroupGap, 10, 10, 10},      // a gap that is read along
      {1, 1021 + 2 * kMaxGroupGap, 10, 10, 10},  // one that is not
  });
  const auto& groups = layout.groups();
  ASSERT_EQ(groups.size(), 5u);
  EXPECT_EQ(groups[0].first, 0u);
  EXPECT_EQ(groups[0].end, 3u);
  EXPECT_EQ(groups[0].offset, 100u);
  EXPECT_EQ(groups[0].stored, 1050u);
  EXPECT_EQ(groups[1].pack, Pack(2));
  EXPECT_EQ(groups[3].first, 5u);
  EXPECT_EQ(groups[3].end, 7u);
  EXPECT_EQ(groups[3].stored, kMaxGroupGap + 20);
  EXPECT_EQ(layout.GroupOf(0), 0u);
  EXPECT_EQ(layout.GroupOf(2), 0u);
  EXPECT_EQ(layout.GroupOf(3), 1u);
  EXPECT_EQ(layout.GroupOf(7), 4u);
}

TEST(BlobLayout, BoundsAGroupInStoredAndPlainBytes) {
  std::vector<Spec> big, bombs;
  for (uint32_t i = 0; i < 8; ++i) {
    big.push_back({1, uint64_t{i} * 200'000, 200'000, 200'000, 200'000});
    bombs.push_back({1, uint64_t{i} * 100, 100, kMaxChunkSize, kMaxChunkSize});
  }
  BlobLayout layout = Make(big);
  for (const FetchGroup& group : layout.groups()) EXPECT_LE(group.stored, kMaxGroupStored);
  EXPECT_EQ(layout.groups().size(), 4u);
  EXPECT_EQ(Make(bombs).groups().size(), 4u);  // 2 MiB plain each
}

}  // namespace
}  // namespace esker
