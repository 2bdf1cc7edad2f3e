// The bytes of docs/formats/records.md: stores that exist hold exactly these.
#include "records.h"

#include <gtest/gtest.h>

#include <limits>

#include "entries.h"
#include "names.h"

namespace esker {
namespace {

TEST(Records, TagRecordBytes) {
  ImageId id{Sha256::Of("image")};
  const std::string content = "image " + id.ToHex() + "\n";
  EXPECT_EQ(EncodeTagRecord(id), content);
  EXPECT_EQ(EncodeTagRecord(std::nullopt), "deleted\n");
  EXPECT_EQ(*ParseTagRecord(content), id);
  EXPECT_EQ(*ParseTagRecord("deleted\n"), std::nullopt);
  for (const std::string& bad :
       {std::string(), std::string("deleted"), std::string("image \n"), content + "\n",
        "image " + id.ToHex(), "image " + id.ToHex() + "0\n", "Image " + id.ToHex() + "\n"}) {
    EXPECT_EQ(ParseTagRecord(bad).status().code(), Code::kDataLoss) << bad;
  }
}

TEST(Records, ImageStateBytes) {
  EXPECT_EQ(ImageStateRecord{}.Encode(), "live\n");
  EXPECT_EQ((ImageStateRecord{.deleted = true}.Encode()), "deleted\n");
  ImageStateRecord with{.deleted = true, .with_tag = "a/b:c", .at_number = 17};
  EXPECT_EQ(with.Encode(), "deleted with 17 a/b:c\n");
  ImageStateRecord parsed = *ImageStateRecord::Parse("deleted with 17 a/b:c\n");
  EXPECT_TRUE(parsed.deleted);
  EXPECT_EQ(parsed.with_tag, "a/b:c");
  EXPECT_EQ(parsed.at_number, 17u);
  EXPECT_FALSE(ImageStateRecord::Parse("live\n")->deleted);
  EXPECT_TRUE(ImageStateRecord::Parse("deleted\n")->deleted);
  for (std::string_view bad :
       {"", "live", "dead\n", "deleted with \n", "deleted with 17\n", "deleted with 17 \n",
        "deleted with x a:b\n", "deleted with 17a:b\n", "deleted with 17 a:b",
        "deleted with -1 a\n", "deleted with 99999999999999999999999 a:b\n"}) {
    EXPECT_EQ(ImageStateRecord::Parse(bad).status().code(), Code::kDataLoss) << bad;
  }
}

TEST(Entries, ComeBackAsTheyWere) {
  PackEntry pack{1, -2, std::numeric_limits<int64_t>::max(), 4, 5};
  PackEntry pack_back = *PackEntry::Decode(pack.Encode());
  EXPECT_EQ(pack_back.Encode(), pack.Encode());
  EXPECT_EQ(pack_back.condemned_ns, -2);
  TagEntry tag{9, ImageId{Sha256::Of("x")}};
  EXPECT_EQ(TagEntry::Decode(tag.Encode())->image, tag.image);
  EXPECT_EQ(TagEntry::Decode(TagEntry{9, std::nullopt}.Encode())->image, std::nullopt);
  BlobChunks list{{{Sha256::Of("a"), 1}, {Sha256::Of("b"), kMaxChunkSize}}};
  EXPECT_EQ(DecodeBlobList(EncodeBlobList(list))->Id(), list.Id());
  EXPECT_FALSE(DecodeBlobList(EncodeBlobList(list).substr(1)).ok());
  EXPECT_FALSE(PackEntry::Decode("short").ok());
  EXPECT_EQ(NameOfTagKey(TagKey("a:b")), "a:b");
  EXPECT_EQ(NameOfTagKey(ImageTagKey(ImageId{}, "a:b")), "a:b");
}

TEST(Names, EditDistance) {
  EXPECT_EQ(EditDistance("", "", 3), 0u);
  EXPECT_EQ(EditDistance("abc", "abc", 3), 0u);
  EXPECT_EQ(EditDistance("abc", "acb", 3), 2u);
  EXPECT_EQ(EditDistance("kitten", "sitting", 3), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting", 2), 3u);
  EXPECT_EQ(EditDistance("", "abcdef", 2), 3u);
}

TEST(Names, NearestAreFewAndInOrder) {
  std::vector<std::string> names = {"app:1", "app:2", "app:very-different-tag",
                                    "apq:1", "zzz:9", "ap:1"};
  std::vector<std::string> nearest = NearestNames("app:3", names);
  ASSERT_EQ(nearest.size(), 3u);
  EXPECT_EQ(nearest[0], "app:1");
  EXPECT_EQ(nearest[1], "app:2");
  EXPECT_TRUE(NearestNames("something-else", names).empty());
}

}  // namespace
}  // namespace esker
