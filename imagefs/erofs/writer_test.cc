#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "chunks.h"
#include "format.h"
#include "image_view.h"
#include "imagefs/erofs.h"
#include "testing/image_editor.h"
#include "testing/random_tree.h"

namespace esker::erofs {
namespace {

std::string Written(const Tree& tree, const WriteOptions& options) {
  auto image = WriteMetadata(tree, options);
  EXPECT_TRUE(image.ok()) << image.status().ToString();
  return image.ok() ? *image : std::string();
}

void Put(Tree& tree, const std::string& path, Node node) {
  const Status status = tree.Put(path, std::move(node));
  ASSERT_TRUE(status.ok()) << status.ToString();
}

TEST(Writer, EmptyTree) {
  Tree tree;
  const std::string image = Written(tree, {});
  EXPECT_EQ(image.size(), 2 * kBlockSize);
  auto summary = Validate(Bytes(image), {});
  ASSERT_TRUE(summary.ok()) << summary.status().ToString();
  EXPECT_EQ(summary->inodes, 1u);
  EXPECT_EQ(summary->directories, 1u);
  EXPECT_EQ(summary->data_device_bytes, 0u);
}

// The validator accepts whatever the writer makes; reading it back gives the same tree; writing
// that again gives the same bytes.
TEST(Writer, RandomTreesRoundTrip) {
  RandomTreeOptions options;
  const uint64_t device = options.device_blocks * kBlockSize;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    options.operations = static_cast<int>(seed * 7 % 400);
    const Tree tree = RandomTree(seed, options);
    const std::string image = Written(tree, {.data_device_bytes = device});
    auto summary = Validate(Bytes(image), {.data_device_bytes = device});
    ASSERT_TRUE(summary.ok()) << summary.status().ToString();
    EXPECT_EQ(summary->inodes, tree.inode_count());
    auto again = ReadTree(Bytes(image));
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    ASSERT_EQ(FirstDifference(tree, *again), "");
    ASSERT_TRUE(Written(*again, {.data_device_bytes = device}) == image);
  }
}

TEST(Writer, SameTreeSameBytesWhateverTheHistory) {
  Tree straight, winding;
  for (int i = 0; i < 500; ++i) Put(straight, "d/" + std::to_string(i), Node{});
  Put(winding, "d/x", Node{});
  for (int i = 499; i >= 0; --i) Put(winding, "other/../d/" + std::to_string(i), Node{});
  Put(winding, "e/f", Node{});
  Put(winding, "e", Node{});
  // Names cannot be taken away, so the other tree gets what is left of the winding way.
  Put(straight, "e", Node{});
  Put(straight, "d/x", Node{});
  EXPECT_TRUE(Written(straight, {}) == Written(winding, {}));
  Put(straight, "d/x", Node{.mode = 0600});
  EXPECT_FALSE(Written(straight, {}) == Written(winding, {}));
}

// Layers are named by their bytes: when this digest changes, every image imported again gets
// another name. Change it only together with docs/formats/erofs.md.
TEST(Writer, BytesOfTheSampleAreAsEver) {
  EXPECT_EQ(Sha256::Of(SampleImage().bytes()).ToHex(),
            "7a0a0c91b2386e51491abc59b64a72dad64399189ba25cbbd565bb8ed51ea2c5");
}

TEST(Writer, UuidAndChecksumFollowContent) {
  Tree a, b;
  Put(a, "f", Node{.uid = 1});
  Put(b, "f", Node{.uid = 2});
  const std::string image_a = Written(a, {}), image_b = Written(b, {});
  SuperBlock super_a, super_b;
  std::memcpy(&super_a, image_a.data() + kSuperOffset, sizeof(super_a));
  std::memcpy(&super_b, image_b.data() + kSuperOffset, sizeof(super_b));
  EXPECT_NE(std::memcmp(super_a.uuid, super_b.uuid, sizeof(super_a.uuid)), 0);
}

TEST(Writer, CommonestTimeMakesInodesCompact) {
  Tree same, different;
  for (int i = 0; i < 1000; ++i) {
    Put(same, std::to_string(i), Node{.mtime_seconds = -77, .mtime_nanos = 5});
    Put(different, std::to_string(i), Node{.mtime_seconds = i, .mtime_nanos = 5});
  }
  const std::string small = Written(same, {}), large = Written(different, {});
  EXPECT_LT(small.size() + 900 * 32, large.size());
  auto again = ReadTree(Bytes(small));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(FirstDifference(same, *again), "");
}

TEST(Chunks, AsFewIndexesAsTheExtentsAllow) {
  struct Case {
    const char* name;
    uint64_t size;
    std::vector<Extent> extents;
    uint64_t count;
  };
  const uint64_t k = 4096, mib = 1 << 20, tib = uint64_t{1} << 40;
  const Case cases[] = {
      {"one byte", 1, {{0, 1, 0}}, 1},
      {"one block", k, {{0, k, 0}}, 1},
      {"contiguous 5 MiB and a bit", 5 * mib + 7, {{0, 5 * mib + 7, k}}, 1},
      {"contiguous 9 TiB", 9 * tib, {{0, 9 * tib, 0}}, 2},
      {"only a hole", 3 * tib + 1, {}, 1},
      {"hole then data", 2 * mib, {{mib, mib, 0}}, 2},
      {"hole, 64 KiB, hole", mib, {{512 * 1024, 64 * 1024, 0}}, 16},
      {"two places", 8 * k, {{0, 4 * k, 0}, {4 * k, 4 * k, 400 * k}}, 2},
      {"border at an odd block", 8 * k, {{0, 3 * k, 0}, {3 * k, 5 * k, 400 * k}}, 8},
      {"data then a hole", 16 * k, {{0, 8 * k, 0}}, 2},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Node node;
    node.size = c.size;
    node.extents = c.extents;
    EXPECT_EQ(ChunkCount(c.size, ChunkShift(node)), c.count);
    Tree tree;
    Put(tree, "f", node);
    const std::string image = Written(tree, {.data_device_bytes = 9 * tib});
    auto again = ReadTree(Bytes(image));
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_EQ(FirstDifference(tree, *again), "");
  }
}

TEST(Writer, Limits) {
  const uint64_t k = 4096;
  Tree tree;
  Node sparse;
  sparse.size = uint64_t{1} << 50;
  sparse.extents = {{k, k, 0}};
  Put(tree, "sparse", sparse);
  EXPECT_EQ(WriteMetadata(tree, {.data_device_bytes = k}).status().code(),
            Code::kResourceExhausted);

  Tree beyond;
  Node file;
  file.size = k;
  file.extents = {{0, k, k}};
  Put(beyond, "f", file);
  EXPECT_EQ(WriteMetadata(beyond, {.data_device_bytes = k}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(WriteMetadata(beyond, {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(WriteMetadata(beyond, {.data_device_bytes = 2 * k - 1}).status().code(),
            Code::kInvalidArgument)
      << "the kernel cannot read a last block that is not whole";
  EXPECT_TRUE(WriteMetadata(beyond, {.data_device_bytes = 2 * k}).ok());
  EXPECT_EQ(WriteMetadata(beyond, {.data_device_bytes = uint64_t{1} << 44}).status().code(),
            Code::kResourceExhausted);
  EXPECT_TRUE(WriteMetadata(beyond, {.data_device_bytes = (uint64_t{1} << 44) - 2 * k}).ok());

  Tree many;
  for (int i = 0; i < 1000; ++i) Put(many, std::to_string(i), Node{.mtime_seconds = i});
  EXPECT_EQ(WriteMetadata(many, {.max_metadata_bytes = 64 * 1024}).status().code(),
            Code::kResourceExhausted);
}

TEST(Writer, DirectoryInodesLieTogether) {
  Tree tree;
  for (char d = 'a'; d < 'f'; ++d) {
    for (int i = 0; i < 50; ++i) {
      Put(tree, std::string(1, d) + "/" + std::to_string(i), Node{.mtime_seconds = i});
    }
  }
  const std::string image = Written(tree, {});
  ImageView view(Bytes(image));
  ASSERT_TRUE(view.ReadSuperBlock().ok());
  auto root = view.ReadInode(kRootNid);
  ASSERT_TRUE(root.ok());
  std::vector<DirectoryEntry> top, entries;
  ASSERT_TRUE(view.ReadDirectoryBlock(*root, 0, &top).ok());
  for (const DirectoryEntry& directory : top) {
    if (directory.name.starts_with(".")) continue;
    auto inode = view.ReadInode(directory.nid);
    ASSERT_TRUE(inode.ok());
    ASSERT_TRUE(view.ReadDirectoryBlock(*inode, 0, &entries).ok());
    uint64_t low = UINT64_MAX, high = 0;
    for (const DirectoryEntry& entry : entries) {
      if (entry.name.starts_with(".")) continue;
      low = std::min(low, entry.nid);
      high = std::max(high, entry.nid);
    }
    EXPECT_LE(high - low, 50 * 2u) << directory.name;
  }
}

// Linear-ish: doubling the tree must not cost much more than twice. Compares within one run.
TEST(Writer, LargeTreesAreLinear) {
  auto cost = [](int directories, int files) {
    const auto begin = std::chrono::steady_clock::now();
    Tree tree;
    for (int d = 0; d < directories; ++d) {
      for (int f = 0; f < files; ++f) {
        EXPECT_TRUE(tree.Put("d" + std::to_string(d) + "/some-file-name-" + std::to_string(f),
                             Node{.mtime_seconds = f})
                        .ok());
      }
    }
    const std::string image = Written(tree, {});
    EXPECT_TRUE(Validate(Bytes(image), {}).ok());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  cost(1, 5000);  // warms up the allocator
  const double one_small = cost(1, 25'000), one_large = cost(1, 100'000);
  EXPECT_LT(one_large, one_small * 4 * 4);
  const double many_small = cost(100, 500), many_large = cost(400, 500);
  EXPECT_LT(many_large, many_small * 4 * 4);
  RecordProperty("one_directory_of_100000_ms", static_cast<int>(one_large * 1000));
  RecordProperty("tree_of_200000_ms", static_cast<int>(many_large * 1000));
}

}  // namespace
}  // namespace esker::erofs
