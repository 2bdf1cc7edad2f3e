#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "testing/image_editor.h"
#include "testing/random_tree.h"

namespace esker::erofs {
namespace {

using ::testing::HasSubstr;

TEST(Validator, AcceptsTheSample) {
  const ImageEditor image = SampleImage();
  auto summary = Validate(Bytes(image.bytes()), kSampleLimits);
  ASSERT_TRUE(summary.ok()) << summary.status().ToString();
  EXPECT_EQ(summary->inodes, SampleTree().inode_count());
  EXPECT_EQ(summary->directories, 7u);
  EXPECT_EQ(summary->data_device_bytes, kSampleLimits.data_device_bytes);
}

TEST(Validator, RefusesBytesThatBelongToNothing) {
  ImageEditor image = SampleImage();
  uint64_t at = image.bytes().size();
  // The last block belongs to a symbolic link or directory; the gap is behind the last inode.
  uint64_t end_of_inodes = 0;
  for (const char* path : {"dir/two", "dir/sub/deep", "big/name1599"}) {
    end_of_inodes = std::max(end_of_inodes, image.At(path).end());
  }
  at = RoundUp(end_of_inodes, kSlotSize) + kSlotSize;
  ASSERT_NE(at % kBlockSize, 0u);
  image.Set<uint8_t>(at, 1);
  auto result = Validate(Bytes(image.bytes()), kSampleLimits);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), HasSubstr("belong to nothing"));
}

TEST(Validator, Limits) {
  const ImageEditor image = SampleImage();
  const uint64_t inodes = SampleTree().inode_count();
  ValidateLimits limits = kSampleLimits;
  limits.max_inodes = inodes;
  EXPECT_TRUE(Validate(Bytes(image.bytes()), limits).ok());
  limits.max_inodes = inodes - 1;
  EXPECT_EQ(Validate(Bytes(image.bytes()), limits).status().code(), Code::kResourceExhausted);
  limits = kSampleLimits;
  limits.data_device_bytes -= 1;
  EXPECT_FALSE(Validate(Bytes(image.bytes()), limits).ok()) << "the last block is not whole";
}

// Any damage is either refused or harmless: what passes can be read, and written again.
TEST(Validator, SurvivesRandomDamage) {
  const ImageEditor honest = SampleImage();
  std::mt19937 random(20261130);
  int accepted = 0;
  constexpr int kRounds = 30'000;
  for (int round = 0; round < kRounds; ++round) {
    ImageEditor image = honest;
    for (uint32_t n = 1 + random() % 3; n > 0; --n) {
      const uint64_t at = random() % image.bytes().size();
      image.Set<uint8_t>(at, random() % 2 ? static_cast<uint8_t>(random())
                                          : image.Get<uint8_t>(at) ^ (1 << random() % 8));
    }
    image.FixChecksum();
    if (!Validate(Bytes(image.bytes()), kSampleLimits).ok()) continue;
    ++accepted;
    auto tree = ReadTree(Bytes(image.bytes()));
    ASSERT_TRUE(tree.ok()) << "round " << round << ": " << tree.status().ToString();
    auto again = WriteMetadata(*tree, {.data_device_bytes = kSampleLimits.data_device_bytes});
    ASSERT_TRUE(again.ok()) << "round " << round << ": " << again.status().ToString();
    auto reread = ReadTree(Bytes(*again));
    ASSERT_TRUE(reread.ok()) << "round " << round;
    ASSERT_EQ(FirstDifference(*tree, *reread), "") << "round " << round;
  }
  EXPECT_LT(accepted, kRounds * 3 / 4);
}

TEST(Validator, SurvivesTruncation) {
  const ImageEditor honest = SampleImage();
  for (uint64_t size = 0; size < honest.bytes().size(); size += 97) {
    ImageEditor image(honest.bytes().substr(0, size));
    if (size >= kBlockSize) image.FixChecksum();
    EXPECT_FALSE(Validate(Bytes(image.bytes()), kSampleLimits).ok()) << size;
  }
}

}  // namespace
}  // namespace esker::erofs
