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
  const std::string image = "image " + id.ToHex() + "\n";
  EXPECT_EQ((TagRecord{id, "alpha", "train-7"}.Encode()),
            "tag 2\n"
            "image 6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d\n"
            "project alpha\n"
            "job train-7\n");
  EXPECT_EQ(TagRecord{id}.Encode(), "tag 2\n" + image);
  EXPECT_EQ((TagRecord{id, "", "j"}.Encode()), "tag 2\n" + image + "job j\n");
  EXPECT_EQ((TagRecord{std::nullopt, "alpha", ""}.Encode()), "deleted\n");
  for (auto [name, record] : {std::pair("@alpha/a:1", TagRecord{id, "alpha", "j"}),
                              {"@alpha/a:1", {id, "alpha", ""}},
                              {"a:1", {id, "", "j"}},
                              {"a:1", {id, "", ""}},
                              {"@alpha/a:1", {std::nullopt, "", ""}}}) {
    TagRecord back = *TagRecord::Parse(name, record.Encode());
    EXPECT_EQ(back.image, record.image);
    EXPECT_EQ(back.project, record.project);
    EXPECT_EQ(back.job, record.job);
  }
  // Form 1, of before names belonged to projects: shared.
  EXPECT_EQ(TagRecord::Parse("a:1", image)->image, id);
  EXPECT_EQ(TagRecord::Parse("a:1", image)->project, "");
}

TEST(Records, BadTagRecordsAreRefused) {
  const std::string hex = Sha256::Of("image").ToHex();
  const std::string image = "image " + hex + "\n", form2 = "tag 2\n" + image;
  for (const std::string& bad :
       {std::string(), std::string("deleted"), std::string("image \n"), image + "\n",
        "image " + hex, "image " + hex + "0\n", "Image " + hex + "\n", image + "job j\n",
        std::string("tag 2\n"), "tag 3\n" + image, "tag 2\nimage " + hex, form2 + "\n",
        form2 + "job j", form2 + "job \n", form2 + "job a b\n", form2 + "job j\njob k\n",
        form2 + "project alpha\n", form2 + "more\n"}) {
    EXPECT_EQ(TagRecord::Parse("a:1", bad).status().code(), Code::kDataLoss) << bad;
  }
  // Under the name of a project that it is not of.
  for (const std::string& bad :
       {image, form2, form2 + "project beta\n", form2 + "job j\nproject alpha\n"}) {
    EXPECT_EQ(TagRecord::Parse("@alpha/a:1", bad).status().code(), Code::kDataLoss) << bad;
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

TEST(Names, BelongToProjects) {
  EXPECT_EQ(*NormaliseTag("@Alpha-1/team/app"), "@Alpha-1/team/app:latest");
  for (const char* bad : {"@", "@alpha", "@alpha/", "@/app", "@a b/app", "@.a/app", "@a/@b/app"}) {
    EXPECT_EQ(NormaliseTag(bad).status().code(), Code::kInvalidArgument) << bad;
  }
  EXPECT_EQ(NormaliseTag("@" + std::string(64, 'p') + "/" + std::string(190, 'n')).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(ProjectOfName("@alpha/team/app:1"), "alpha");
  EXPECT_EQ(ProjectOfName("team/app:1"), "");
  EXPECT_EQ(NameWithoutProject("@alpha/team/app:1"), "team/app:1");
  EXPECT_EQ(*NameInProject("", "app"), "app:latest");
  EXPECT_EQ(*NameInProject("", "@beta/app"), "@beta/app:latest");
  EXPECT_EQ(*NameInProject("alpha", "app:1"), "@alpha/app:1");
  EXPECT_EQ(*NameInProject("alpha", "@alpha/app:1"), "@alpha/app:1");
  EXPECT_EQ(NameInProject("alpha", "@beta/app:1").status().code(), Code::kPermissionDenied);
  using Names = std::vector<std::string>;
  EXPECT_EQ(NamesToTry("a:1", {"alpha", false}), (Names{"@alpha/a:1", "a:1"}));
  EXPECT_EQ(NamesToTry("a:1", {"", true}), Names{"a:1"});
  EXPECT_EQ(NamesToTry("@beta/a:1", {"alpha", true}), Names{"@beta/a:1"});
  EXPECT_EQ(NamesToTry("@beta/a:1", {"alpha", false}), Names{});
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
  EXPECT_EQ(NearestNames("app:1", {"@project-of-others/app:1", "apq:1"}).front(),
            "@project-of-others/app:1");
}

}  // namespace
}  // namespace esker
