#include "imagefs/blob_map.h"

#include <gtest/gtest.h>

#include "base/wire.h"
#include "testing/golden.h"

namespace esker {
namespace {

BlobMap SmallMap() {
  BlobChunks list{{{Sha256::Of("a"), 1}, {Sha256::Of("b"), 4097}, {Sha256::Of("a"), 1}}};
  PackId one{Sha256::Of("one")}, two{Sha256::Of("two")};
  BlobMap map = BlobMap::Make(list, {{one, 16, 10, 10, kCodecRaw, 3},
                                     {two, 16, 100, 5000, kCodecZstd, 0},
                                     {one, 16, 10, 10, kCodecRaw, 3}});
  map.generation = 7;
  return map;
}

// Puts a right checksum under wrong bytes, so that the check behind it is what must notice.
std::string Sealed(std::string bytes) {
  uint32_t checksum = Crc32c(bytes.data(), bytes.size() - 4);
  std::memcpy(bytes.data() + bytes.size() - 4, &checksum, 4);
  return bytes;
}

TEST(BlobMapTest, OffsetsAreAlignedAndDerived) {
  BlobMap map = SmallMap();
  EXPECT_EQ(map.entries[0].blob_offset, 0u);
  EXPECT_EQ(map.entries[1].blob_offset, 4096u);
  EXPECT_EQ(map.entries[2].blob_offset, 4096u + 8192u);
  EXPECT_EQ(map.size_bytes, 4096u * 4);
}

TEST(BlobMapTest, GoldenBytesAndRoundTrip) {
  const std::string bytes = SmallMap().Serialise();
  testing::ExpectGolden("blob-map-1.bin", bytes);
  Result<BlobMap> map = BlobMap::Parse(bytes);
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  EXPECT_EQ(map->Serialise(), bytes);
  EXPECT_EQ(map->id, SmallMap().id);
  EXPECT_EQ(map->generation, 7u);
  EXPECT_EQ(map->entries[1].location.pack, PackId{Sha256::Of("two")});
  EXPECT_TRUE(BlobMap::Parse(BlobMap::Make({}, {}).Serialise()).ok());
}

TEST(BlobMapTest, DamageAnywhereIsDataLoss) {
  const std::string good = SmallMap().Serialise();
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_EQ(BlobMap::Parse(bad).status().code(), Code::kDataLoss) << i;
    EXPECT_EQ(BlobMap::Parse(good.substr(0, i)).status().code(), Code::kDataLoss) << i;
  }
  EXPECT_EQ(BlobMap::Parse(good + "x").status().code(), Code::kDataLoss);
}

TEST(BlobMapTest, EachBadFieldIsDataLossAlsoUnderARightChecksum) {
  using Edit = void (*)(BlobMap&);
  const Edit edits[] = {
      [](BlobMap& m) { m.id = BlobId{Sha256::Of("other")}; },
      [](BlobMap& m) { m.entries[0].chunk.length = 0; },
      [](BlobMap& m) { m.entries[0].chunk.length = 8; },
      [](BlobMap& m) { m.entries[0].chunk.digest = Sha256::Of("z"); },
      [](BlobMap& m) { m.entries[0].location.offset = 10; },
      [](BlobMap& m) { m.entries[0].location.offset = UINT32_MAX; },
      [](BlobMap& m) { m.entries[0].location.codec = 9; },
      [](BlobMap& m) { m.entries[0].location.frame_stored = 11; },
      [](BlobMap& m) { m.entries[1].location.frame_plain = kMaxChunkSize + 1; },
      [](BlobMap& m) { m.entries[1].location.frame_offset = UINT64_MAX; },
      [](BlobMap& m) { m.entries.pop_back(); },
  };
  for (size_t i = 0; i < std::size(edits); ++i) {
    BlobMap map = SmallMap();
    edits[i](map);
    EXPECT_EQ(BlobMap::Parse(map.Serialise()).status().code(), Code::kDataLoss) << "edit " << i;
  }
}

TEST(BlobMapTest, HostileCountsNeitherCrashNorAllocate) {
  const std::string good = SmallMap().Serialise();
  for (size_t i = 8; i + 8 <= good.size(); ++i) {
    std::string bad = good;
    bad.replace(i, 4, "\xff\xff\xff\x7f");
    Result<BlobMap> map = BlobMap::Parse(Sealed(bad));
    if (map.ok()) {
      EXPECT_EQ(map->entries.size(), 3u);
    }
  }
}

}  // namespace
}  // namespace esker
