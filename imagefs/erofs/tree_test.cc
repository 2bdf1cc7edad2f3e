#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "imagefs/erofs.h"
#include "tree_impl.h"

namespace esker::erofs {
namespace {

using ::testing::HasSubstr;

Node File(uint64_t size = 0) {
  Node node;
  node.size = size;
  return node;
}
Node Dir(uint16_t mode = 0700) {
  Node node;
  node.type = FileType::kDirectory;
  node.mode = mode;
  return node;
}
Node Link(std::string target) {
  Node node;
  node.type = FileType::kSymlink;
  node.symlink_target = std::move(target);
  return node;
}

#define ASSERT_OK(expr)                              \
  do {                                               \
    const ::esker::Status status_ = (expr);          \
    ASSERT_TRUE(status_.ok()) << status_.ToString(); \
  } while (false)

std::vector<std::string> Names(const Tree& tree, std::string_view path) {
  std::vector<std::string> names;
  for (const auto& [name, node] : tree.Children(path)) names.push_back(name);
  return names;
}

bool IsWhiteout(const Tree& tree, std::string_view path) {
  const Node* node = tree.Find(path);
  return node != nullptr && node->type == FileType::kCharDevice && node->device_major == 0 &&
         node->device_minor == 0;
}
bool IsOpaque(const Tree& tree, std::string_view path) {
  const Node* node = tree.Find(path);
  if (node == nullptr || node->type != FileType::kDirectory) return false;
  auto it = node->xattrs.find("trusted.overlay.opaque");
  return it != node->xattrs.end() && it->second == "y";
}

TEST(TreePaths, AreNormalisedInsideTheRoot) {
  Tree tree;
  ASSERT_OK(tree.Put("/a/./b//c/", File(0)));
  ASSERT_OK(tree.Put("../../x", File()));
  ASSERT_OK(tree.Put("a/../../y", File()));
  ASSERT_OK(tree.Put("a/b/../../z", File()));
  EXPECT_NE(tree.Find("a/b/c"), nullptr);
  EXPECT_EQ(Names(tree, "/"), (std::vector<std::string>{"a", "x", "y", "z"}));
  for (const char* root : {"", ".", "/", "./", "//", "..", "/../."}) {
    ASSERT_OK(tree.Put(root, Dir(0711)));
    ASSERT_NE(tree.Find(root), nullptr);
    EXPECT_EQ(tree.Find(root)->mode, 0711) << root;
  }
  EXPECT_EQ(Names(tree, "/").size(), 4u) << "a new root node keeps the children";
}

TEST(TreePaths, RefusesWhatNoFileSystemCanName) {
  Tree tree;
  EXPECT_EQ(tree.Put(std::string(256, 'a'), File()).code(), Code::kInvalidArgument);
  EXPECT_EQ(tree.Put("x/" + std::string(256, 'a') + "/..", File()).code(), Code::kInvalidArgument);
  EXPECT_EQ(tree.Put(std::string_view("a\0b", 3), File()).code(), Code::kInvalidArgument);
  EXPECT_EQ(tree.Put("/", File()).code(), Code::kInvalidArgument);
  EXPECT_EQ(tree.Whiteout("/").code(), Code::kInvalidArgument);
  EXPECT_TRUE(Names(tree, "/").empty());
  ASSERT_OK(tree.Put(std::string(255, '\xff'), File()));
}

TEST(TreePut, LastEntryWins) {
  Tree tree;
  ASSERT_OK(tree.Put("a", File(0)));
  ASSERT_OK(tree.Put("a", Link("t")));
  EXPECT_EQ(tree.Find("a")->type, FileType::kSymlink);
  ASSERT_OK(tree.Put("a", Dir()));
  ASSERT_OK(tree.Put("a/b", File()));
  ASSERT_OK(tree.Put("a", Dir(0751)));
  EXPECT_NE(tree.Find("a/b"), nullptr) << "a directory over a directory keeps its children";
  EXPECT_EQ(tree.Find("a")->mode, 0751);
  ASSERT_OK(tree.Put("a", File()));
  EXPECT_EQ(tree.Find("a/b"), nullptr);
  EXPECT_EQ(tree.inode_count(), 2u) << "what was replaced is gone";
}

TEST(TreePut, MakesParentsAndFollowsNothing) {
  Tree tree;
  ASSERT_OK(tree.Put("etc", Link("/outside")));
  ASSERT_OK(tree.Put("etc/passwd", File()));
  EXPECT_EQ(tree.Find("etc")->type, FileType::kDirectory);
  const Node& parent = *tree.Find("etc");
  EXPECT_EQ(parent.mode, 0755);
  EXPECT_EQ(parent.uid, 0u);
  EXPECT_EQ(parent.mtime_seconds, 0);
  EXPECT_EQ(tree.Find("outside"), nullptr);
}

TEST(TreePut, RefusesBadNodes) {
  struct Case {
    const char* name;
    Node node;
  };
  std::vector<Case> cases;
  auto add = [&](const char* name, auto change) {
    Node node;
    node.size = 3 * 4096;
    change(node);
    cases.push_back({name, node});
  };
  add("unaligned file offset", [](Node& n) { n.extents = {{1, 4096, 0}}; });
  add("unaligned device offset", [](Node& n) { n.extents = {{0, 4096, 512}}; });
  add("empty extent", [](Node& n) { n.extents = {{0, 0, 0}}; });
  add("beyond the end", [](Node& n) { n.extents = {{8192, 8192, 0}}; });
  add("wraps around", [](Node& n) { n.extents = {{4096, ~uint64_t{0} - 100, 0}}; });
  add("device wraps", [](Node& n) { n.extents = {{0, 4096, ~uint64_t{4095}}}; });
  add("overlap", [](Node& n) { n.extents = {{0, 8192, 0}, {4096, 4096, 0}}; });
  add("out of order", [](Node& n) { n.extents = {{4096, 4096, 0}, {0, 4096, 0}}; });
  add("ends inside a block", [](Node& n) { n.extents = {{0, 100, 0}}; });
  add("file too large", [](Node& n) { n.size = ~uint64_t{0}; });
  add("mode", [](Node& n) { n.mode = 0100644; });
  add("nanoseconds", [](Node& n) { n.mtime_nanos = 1'000'000'000; });
  add("empty target", [](Node& n) { n.type = FileType::kSymlink; });
  add("long target", [](Node& n) { n = Link(std::string(4096, 'x')); });
  add("NUL in target", [](Node& n) { n = Link(std::string("a\0b", 3)); });
  add("major", [](Node& n) { n.type = FileType::kCharDevice, n.device_major = 4096; });
  add("minor", [](Node& n) { n.type = FileType::kBlockDevice, n.device_minor = 1 << 20; });
  add("xattr prefix", [](Node& n) { n.xattrs["system.nfs4_acl"] = "x"; });
  add("xattr without rest", [](Node& n) { n.xattrs["user."] = "x"; });
  add("xattr name", [](Node& n) { n.xattrs["user." + std::string(251, 'n')] = "x"; });
  add("xattr value", [](Node& n) { n.xattrs["user.x"] = std::string(65536, 'x'); });
  add("xattr NUL", [](Node& n) { n.xattrs[std::string("user.a\0b", 8)] = "x"; });
  add("overlay redirect", [](Node& n) { n = Dir(), n.xattrs["trusted.overlay.redirect"] = "/"; });
  add("overlay opaque x", [](Node& n) { n = Dir(), n.xattrs["trusted.overlay.opaque"] = "x"; });
  add("opaque file", [](Node& n) { n.xattrs["trusted.overlay.opaque"] = "y"; });
  for (Case& c : cases) {
    Tree tree;
    const Status status = tree.Put("f", c.node);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << c.name;
    EXPECT_EQ(tree.Find("f"), nullptr) << c.name;
  }
}

TEST(TreePut, JoinsExtents) {
  Tree tree;
  Node node = File(3 * 4096 - 5);
  node.extents = {{0, 4096, 8192}, {4096, 4096, 12288}, {8192, 4091, 40960}};
  ASSERT_OK(tree.Put("f", node));
  ASSERT_EQ(tree.Find("f")->extents.size(), 2u);
  EXPECT_EQ(tree.Find("f")->extents[0].length, 8192u);
}

TEST(TreeLink, CountsNamesAndSurvivesReplacedTargets) {
  Tree tree;
  ASSERT_OK(tree.Put("implicit/parent/f", File(7)));
  ASSERT_OK(tree.Link("l1", "implicit/parent/f"));
  ASSERT_OK(tree.Link("new/dir/l2", "/l1"));
  EXPECT_EQ(tree.LinkCount("l1"), 3u);
  EXPECT_EQ(tree.Find("l1"), tree.Find("new/dir/l2"));
  ASSERT_OK(tree.Put("l1", File(9)));
  EXPECT_EQ(tree.LinkCount("implicit/parent/f"), 2u);
  EXPECT_EQ(tree.Find("implicit/parent/f")->size, 7u) << "a replaced name leaves the others";
  ASSERT_OK(tree.Link("l1", "l1"));
  EXPECT_EQ(tree.LinkCount("l1"), 1u);
}

TEST(TreeLink, TargetInTheWay) {
  Tree tree;
  ASSERT_OK(tree.Put("a", File(7)));
  ASSERT_OK(tree.Link("a/b", "a"));
  EXPECT_EQ(tree.Find("a")->type, FileType::kDirectory);
  ASSERT_NE(tree.Find("a/b"), nullptr);
  EXPECT_EQ(tree.Find("a/b")->size, 7u);
  EXPECT_EQ(tree.LinkCount("a/b"), 1u);
  ASSERT_OK(tree.Link("a", "a/b"));
  EXPECT_EQ(tree.Find("a")->size, 7u) << "the target lay in the directory that the link replaced";
  EXPECT_EQ(tree.inode_count(), 2u);
}

TEST(TreeLink, Errors) {
  Tree tree;
  ASSERT_OK(tree.Put("d", Dir()));
  ASSERT_OK(tree.Whiteout("w"));
  EXPECT_EQ(tree.Link("l", "missing").code(), Code::kNotFound);
  EXPECT_THAT(tree.Link("l", "missing").message(), HasSubstr("missing"));
  EXPECT_EQ(tree.Link("l", "w").code(), Code::kNotFound) << "a whiteout is no entry of the layer";
  EXPECT_EQ(tree.Link("l", "d").code(), Code::kInvalidArgument);
  EXPECT_EQ(tree.Link("/", "d").code(), Code::kInvalidArgument);
}

TEST(TreeMarkers, ActOnLowerLayersOnly) {
  Tree tree;
  ASSERT_OK(tree.Put("own", File()));
  ASSERT_OK(tree.Put("dir/f", File()));
  ASSERT_OK(tree.Whiteout("own"));
  ASSERT_OK(tree.Whiteout("dir"));
  ASSERT_OK(tree.Whiteout("gone"));
  ASSERT_OK(tree.Whiteout("own/below"));
  EXPECT_EQ(tree.Find("own")->type, FileType::kRegular);
  EXPECT_TRUE(IsOpaque(tree, "dir"));
  EXPECT_NE(tree.Find("dir/f"), nullptr);
  EXPECT_TRUE(IsWhiteout(tree, "gone"));
  EXPECT_EQ(tree.Find("gone")->mode, 0);
  ASSERT_OK(tree.Opaque("/"));
  EXPECT_TRUE(IsOpaque(tree, "/"));
}

// Whatever the order of entries, the layer is the same. Entries that replace each other keep their
// own order (the last one wins), so each set here has every own path once.
TEST(TreeMarkers, WorkInAnyOrder) {
  using Operation = std::function<Status(Tree&)>;
  auto put = [](const char* path, Node node) {
    return Operation([=](Tree& tree) { return tree.Put(path, node); });
  };
  auto whiteout = [](const char* path) {
    return Operation([=](Tree& tree) { return tree.Whiteout(path); });
  };
  auto opaque = [](const char* path) {
    return Operation([=](Tree& tree) { return tree.Opaque(path); });
  };
  const std::vector<std::vector<Operation>> sets = {
      {put("a", Dir(0711)), whiteout("a"), put("a/f", File(1)), whiteout("a/g")},
      {opaque("a"), put("a", Dir(0711)), whiteout("a/b/c"), put("a/b/d", File(1))},
      {whiteout("a/b"), whiteout("a"), whiteout("a/b/c"), put("z", File(1))},
      {whiteout("a"), opaque("a/b"), whiteout("a/b/c"), put("a/d", File(1))},
      {put("a", File(1)), whiteout("a/b"), opaque("z/y"), whiteout("z")},
  };
  for (size_t s = 0; s < sets.size(); ++s) {
    std::vector<int> order = {0, 1, 2, 3};
    std::string first;
    do {
      Tree tree;
      std::string name;
      for (int i : order) {
        ASSERT_OK(sets[s][i](tree));
        name += static_cast<char>('0' + i);
      }
      auto image = WriteMetadata(tree, {});
      ASSERT_TRUE(image.ok()) << image.status().ToString();
      if (first.empty()) first = *image;
      EXPECT_EQ(*image == first, true) << "set " << s << " in order " << name;
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(TreeMarkers, SurviveAReplacedDirectory) {
  Tree tree;
  ASSERT_OK(tree.Put("a/own", File()));
  ASSERT_OK(tree.Whiteout("a/gone"));
  ASSERT_OK(tree.Opaque("a/opaque"));
  ASSERT_OK(tree.Put("a", File()));
  ASSERT_OK(tree.Put("a/new", File()));
  EXPECT_TRUE(IsWhiteout(tree, "a/gone"));
  EXPECT_TRUE(IsOpaque(tree, "a/opaque"));
  EXPECT_EQ(Names(tree, "a"), (std::vector<std::string>{"gone", "new", "opaque"}));
}

TEST(TreeMarkers, ReplayIsBounded) {
  Tree tree;
  for (int i = 0; i < 2000; ++i) ASSERT_OK(tree.Whiteout("a/" + std::to_string(i)));
  Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i) {
    ASSERT_OK(tree.Put("a", File()));
    status = tree.Put("a", Dir());
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
}

TEST(TreeDepth, DeepPathsNeedNoStack) {
  Tree tree;
  std::string path;
  for (int i = 0; i < 50'000; ++i) path += "d/";
  ASSERT_OK(tree.Put(path + "f", File(1)));
  ASSERT_OK(tree.Whiteout(path + "w"));
  auto image = WriteMetadata(tree, {});
  ASSERT_TRUE(image.ok()) << image.status().ToString();
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(image->data()),
                                       image->size());
  auto again = ReadTree(bytes);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_NE(again->Find(path + "f"), nullptr);
  ASSERT_OK(tree.Put("d", File()));
  EXPECT_EQ(tree.inode_count(), 2u);
  ASSERT_OK(tree.Put(path, Dir()));
  EXPECT_TRUE(IsWhiteout(tree, path + "w")) << "the marker outlived its directories";
}

}  // namespace
}  // namespace esker::erofs
