// What a directory without an entry of its own looks like over the layers below it.
#include "imagefs/implicit_directories.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "imagefs/erofs.h"
#include "testing/image_editor.h"
#include "xattr.h"

namespace esker::erofs {
namespace {

Node Directory(uint16_t mode, uint32_t owner = 0, int64_t time = 0) {
  Node node;
  node.type = FileType::kDirectory;
  node.mode = mode;
  node.uid = node.gid = owner;
  node.mtime_seconds = time;
  return node;
}

// A layer with an entry for its root, as most tools write it.
Tree Layer() {
  Tree tree;
  EXPECT_TRUE(tree.Put("", Directory(0755)).ok());
  return tree;
}

std::string Write(const Tree& tree) {
  auto image = WriteMetadata(tree, {});
  EXPECT_TRUE(image.ok()) << image.status().ToString();
  return image.ok() ? *image : "";
}

// The layers as an image of them must hold them, lowest first.
std::vector<std::string> ResolveAll(std::vector<std::string> images) {
  ImplicitDirectories directories;
  for (const std::string& image : images) {
    if (!HasImplicitDirectories(Bytes(image))) continue;
    EXPECT_TRUE(directories.Want(Bytes(image)).ok());
  }
  for (std::string& image : images) {
    auto mended = directories.Resolve(Bytes(image));
    EXPECT_TRUE(mended.ok()) << mended.status().ToString();
    if (mended.ok() && *mended) image = **mended;
  }
  return images;
}

Node At(const std::string& image, const std::string& path) {
  auto tree = ReadTree(Bytes(image));
  EXPECT_TRUE(tree.ok()) << tree.status().ToString();
  const Node* node = tree.ok() ? tree->Find(path) : nullptr;
  EXPECT_NE(node, nullptr) << path;
  return node == nullptr ? Node() : *node;
}

class ImplicitDirectoriesTest : public ::testing::Test {
 protected:
  ImplicitDirectoriesTest() {
    Node special = Directory(02750, 7, 1234);
    special.xattrs["user.note"] = "kept";
    EXPECT_TRUE(lower_.Put("a", special).ok());
    EXPECT_TRUE(lower_.Put("a/b", Directory(01777, 8, 5678)).ok());
    EXPECT_TRUE(lower_.Put("a/b/f", Node()).ok());
  }
  void ExpectLikeLower(const std::string& image) {
    EXPECT_EQ(At(image, "a").mode, 02750);
    EXPECT_EQ(At(image, "a").uid, 7u);
    EXPECT_EQ(At(image, "a").mtime_seconds, 1234);
    EXPECT_EQ(At(image, "a").xattrs.at("user.note"), "kept");
    EXPECT_EQ(At(image, "a/b").mode, 01777);
    EXPECT_EQ(At(image, "a/b").gid, 8u);
  }
  void ExpectDefault(const Node& node) {
    EXPECT_EQ(node.mode, 0755);
    EXPECT_EQ(node.uid, 0u);
    EXPECT_EQ(node.mtime_seconds, 0);
    EXPECT_FALSE(node.xattrs.contains("user.note"));
  }
  Tree lower_ = Layer();
  Tree upper_ = Layer();
};

TEST_F(ImplicitDirectoriesTest, LowerAttributesShineThrough) {
  ASSERT_TRUE(upper_.Put("a/b/c", Node()).ok());
  const std::string lower = Write(lower_), upper = Write(upper_);
  EXPECT_FALSE(HasImplicitDirectories(Bytes(lower)));
  EXPECT_TRUE(HasImplicitDirectories(Bytes(upper)));
  ExpectDefault(At(upper, "a"));
  const auto resolved = ResolveAll({lower, upper});
  EXPECT_EQ(resolved[0], lower);
  ExpectLikeLower(resolved[1]);
}

TEST_F(ImplicitDirectoriesTest, ResolvedLayersCanBeResolvedAgainOverOthers) {
  ASSERT_TRUE(upper_.Put("a/b/c", Node()).ok());
  const std::string lower = Write(lower_), upper = Write(upper_);
  const auto once = ResolveAll({lower, upper});
  EXPECT_EQ(ResolveAll(once), once);
  Tree other = Layer();
  ASSERT_TRUE(other.Put("a", Directory(0700, 9, 9)).ok());
  EXPECT_EQ(ResolveAll({Write(other), once[1]}), ResolveAll({Write(other), upper}));
  EXPECT_EQ(ResolveAll({once[1]})[0], upper) << "with nothing below it is as it was imported";
}

TEST_F(ImplicitDirectoriesTest, LayersInBetweenCount) {
  Tree middle = Layer(), top = Layer();
  ASSERT_TRUE(middle.Put("a/b/x", Node()).ok());
  ASSERT_TRUE(middle.Put("a/b", Directory(0711, 11)).ok());
  ASSERT_TRUE(top.Put("a/b/y", Node()).ok());
  const auto resolved = ResolveAll({Write(lower_), Write(middle), Write(top)});
  EXPECT_EQ(At(resolved[1], "a").mode, 02750) << "implicit in the middle, too";
  EXPECT_EQ(At(resolved[2], "a").mode, 02750);
  EXPECT_EQ(At(resolved[2], "a/b").mode, 0711);
  EXPECT_EQ(At(resolved[2], "a/b").uid, 11u);
}

TEST_F(ImplicitDirectoriesTest, TheRootIsADirectoryLikeAnyOther) {
  ASSERT_TRUE(lower_.Put("", Directory(0700, 5, 99)).ok());
  Tree upper;
  ASSERT_TRUE(upper.Put("f", Node()).ok());
  const auto resolved = ResolveAll({Write(lower_), Write(upper)});
  EXPECT_EQ(At(resolved[1], "").mode, 0700);
  EXPECT_EQ(At(resolved[1], "").mtime_seconds, 99);
}

TEST_F(ImplicitDirectoriesTest, DirectoriesThatOnlyHoldWhiteoutsAreImplicit) {
  ASSERT_TRUE(upper_.Whiteout("a/b/f").ok());
  ExpectLikeLower(ResolveAll({Write(lower_), Write(upper_)})[1]);
}

TEST_F(ImplicitDirectoriesTest, AnOpaqueDirectoryKeepsItsOwnAttributesButHidesThoseBelow) {
  ASSERT_TRUE(upper_.Opaque("a").ok());
  ASSERT_TRUE(upper_.Put("a/b/c", Node()).ok());
  const auto resolved = ResolveAll({Write(lower_), Write(upper_)});
  EXPECT_EQ(At(resolved[1], "a").mode, 02750) << "only what lies in it is hidden";
  EXPECT_TRUE(At(resolved[1], "a").xattrs.contains(std::string(kOpaqueName)));
  ExpectDefault(At(resolved[1], "a/b"));
}

TEST_F(ImplicitDirectoriesTest, WhatAWhiteoutRemovedLendsNothing) {
  // The same layer removes a and makes it anew, in either order.
  for (bool whiteout_first : {true, false}) {
    Tree upper = Layer();
    if (whiteout_first) {
      ASSERT_TRUE(upper.Whiteout("a").ok());
    }
    ASSERT_TRUE(upper.Put("a/b/c", Node()).ok());
    if (!whiteout_first) {
      ASSERT_TRUE(upper.Whiteout("a").ok());
    }
    const auto resolved = ResolveAll({Write(lower_), Write(upper)});
    ExpectDefault(At(resolved[1], "a"));
    ExpectDefault(At(resolved[1], "a/b"));
  }
  // A layer in between removed it, or put a file in its place.
  for (bool whiteout : {true, false}) {
    Tree middle = Layer(), top = Layer();
    if (whiteout) {
      ASSERT_TRUE(middle.Whiteout("a").ok());
    } else {
      ASSERT_TRUE(middle.Put("a", Node()).ok());
    }
    ASSERT_TRUE(top.Put("a/b/c", Node()).ok());
    const auto resolved = ResolveAll({Write(lower_), Write(middle), Write(top)});
    ExpectDefault(At(resolved[2], "a"));
    ExpectDefault(At(resolved[2], "a/b"));
  }
}

TEST_F(ImplicitDirectoriesTest, DescribedDirectoriesAreNotTouched) {
  ASSERT_TRUE(upper_.Put("a/b/c", Node()).ok());
  ASSERT_TRUE(upper_.Put("a", Directory(0500, 3)).ok());
  ASSERT_TRUE(upper_.Put("a/b", Directory(0755)).ok());
  const std::string upper = Write(upper_);
  EXPECT_FALSE(HasImplicitDirectories(Bytes(upper)));
  EXPECT_EQ(ResolveAll({Write(lower_), upper})[1], upper);
}

TEST_F(ImplicitDirectoriesTest, WideAndDeepOnesTakeNoTimeOfTheirOwn) {
  std::string deep;
  for (int i = 0; i < 20'000; ++i) deep += "d/";
  Tree lower = Layer(), upper = Layer();
  for (int i = 0; i < 20'000; ++i) {
    const std::string name = "wide/" + std::to_string(i);
    ASSERT_TRUE(lower.Put(name, Directory(0711)).ok());
    ASSERT_TRUE(upper.Put(name + "/f", Node()).ok());
  }
  ASSERT_TRUE(lower.Put(deep, Directory(0711)).ok());
  ASSERT_TRUE(upper.Put(deep + "f", Node()).ok());
  const auto resolved = ResolveAll({Write(lower), Write(upper)});
  EXPECT_EQ(At(resolved[1], "wide/19999").mode, 0711);
  EXPECT_EQ(At(resolved[1], deep).mode, 0711);
}

TEST_F(ImplicitDirectoriesTest, DamagedImagesAreRefused) {
  ASSERT_TRUE(upper_.Put("a/b/c", Node()).ok());
  std::string upper = Write(upper_);
  ASSERT_TRUE(ReadTree(Bytes(upper)).ok());
  upper[5000] = static_cast<char>(upper[5000] ^ 1);
  ImplicitDirectories directories;
  EXPECT_EQ(directories.Want(Bytes(upper)).code(), Code::kDataLoss);
  EXPECT_EQ(directories.Resolve(Bytes(upper)).status().code(), Code::kDataLoss);
  EXPECT_FALSE(HasImplicitDirectories(Bytes(std::string("short"))));
}

TEST_F(ImplicitDirectoriesTest, TheSuperBlockMustSayThatThereAreSome) {
  ASSERT_TRUE(upper_.Put("a/b/c", Node()).ok());
  ImageEditor image(Write(upper_));
  image.EditSuper([](SuperBlock& super) { std::memset(super.volume_name, 0, 16); });
  image.FixChecksum();
  EXPECT_EQ(Validate(Bytes(image.bytes()), {}).status().code(), Code::kDataLoss);
}

}  // namespace
}  // namespace esker::erofs
