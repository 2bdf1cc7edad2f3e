// What each entry of a tar becomes: names, whiteouts, links, owners, times, extended attributes.
#include <string>
#include <utility>
#include <vector>

#include "testing/import_fixture.h"
#include "testing/tar_builder.h"

namespace esker {
namespace {

using testing::ImportTest;
using testing::ReadBackLayer;
using testing::TarBuilder;

TEST_F(ImportTest, NamesAreNormalisedInsideTheRoot) {
  ReadBackLayer layer = Layer(TarBuilder()
                                  .Dir("./")
                                  .Dir("/", 0711)
                                  .File("/abs", "1")
                                  .File("./dot//./slash", "2")
                                  .File("../../up", "3")
                                  .File("a/../b", "4")
                                  .Symlink("evil", "/etc")
                                  .File("evil/passwd", "5")
                                  .End());
  EXPECT_EQ(layer.Find("/")->mode, 0711);
  EXPECT_EQ(layer.Content("abs"), "1");
  EXPECT_EQ(layer.Content("dot/slash"), "2");
  EXPECT_EQ(layer.Content("up"), "3");
  EXPECT_EQ(layer.Content("b"), "4");
  EXPECT_EQ(layer.Find("evil")->type, erofs::FileType::kDirectory) << "never followed";
  EXPECT_EQ(layer.Content("evil/passwd"), "5");
}

TEST_F(ImportTest, TheLastOfTwoEntriesWins) {
  ReadBackLayer layer = Layer(TarBuilder()
                                  .File("f", "first")
                                  .File("d/x", "x")
                                  .File("f", "second")
                                  .Dir("d/", 0700)
                                  .File("gone/y", "y")
                                  .File("gone", "now a file")
                                  .End());
  EXPECT_EQ(layer.Content("f"), "second");
  EXPECT_EQ(layer.Content("d/x"), "x");
  EXPECT_EQ(layer.Find("d")->mode, 0700);
  EXPECT_EQ(layer.Content("gone"), "now a file");
}

TEST_F(ImportTest, WhiteoutsAndOpaqueMarkersInAnyOrderAndType) {
  ReadBackLayer layer = Layer(TarBuilder()
                                  .File("d/.wh..wh..opq", "")
                                  .File("d/kept", "k")
                                  .File("e/kept", "k")
                                  .Symlink("e/.wh..wh..opq", "whatever")
                                  .File(".wh.gone", "")
                                  .Dir("deep/.wh.dir/")
                                  .Link("l/.wh.hard", "nowhere")
                                  .File(".wh..wh.plnk/1.2", "aufs")
                                  .File(".wh..wh.orph", "aufs")
                                  .File(".wh.own", "")
                                  .File("own", "stays")
                                  .File("file", "f")
                                  .File("file/.wh.below", "")
                                  .End());
  EXPECT_TRUE(layer.IsOpaque("d"));
  EXPECT_TRUE(layer.IsOpaque("e"));
  EXPECT_EQ(layer.Content("d/kept"), "k");
  EXPECT_EQ(layer.Content("e/kept"), "k");
  EXPECT_TRUE(layer.IsWhiteout("gone"));
  EXPECT_TRUE(layer.IsWhiteout("deep/dir"));
  EXPECT_TRUE(layer.IsWhiteout("l/hard"));
  EXPECT_EQ(layer.Find(".wh..wh.plnk"), nullptr);
  EXPECT_EQ(layer.Find(".wh..wh.orph"), nullptr);
  EXPECT_EQ(layer.Content("own"), "stays");
  EXPECT_EQ(layer.Content("file"), "f");
  ReadBackLayer root = Layer(TarBuilder().File("a", "a").File(".wh..wh..opq", "").End());
  EXPECT_TRUE(root.IsOpaque("/"));
  EXPECT_EQ(root.Content("a"), "a");
  for (const char* name : {".wh.", "a/.wh.", ".wh..", ".wh...", "a/.wh.b/c"}) {
    Status status = Refusal(TarBuilder().File(name, "").End());
    ESKER_EXPECT_CODE(status, Code::kInvalidArgument);
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  }
}

TEST_F(ImportTest, ADeviceThatOverlayfsTakesForAWhiteoutIsOne) {
  ReadBackLayer layer =
      Layer(TarBuilder().Add({.name = "x", .type = '3', .mode = 0, .major = 0, .minor = 0}).End());
  EXPECT_TRUE(layer.IsWhiteout("x"));
}

TEST_F(ImportTest, HardLinksAreOneInode) {
  ReadBackLayer layer = Layer(TarBuilder()
                                  .File("implicit/parent/a", "a")
                                  .Link("b", "./implicit/parent/a")
                                  .Link("c", "/b")
                                  .Symlink("s", "target")
                                  .Link("s2", "s")
                                  .File("b", "replaced")
                                  .End());
  EXPECT_EQ(layer.tree().LinkCount("c"), 2u);
  EXPECT_EQ(layer.Content("c"), "a");
  EXPECT_EQ(layer.Content("b"), "replaced");
  EXPECT_EQ(layer.Find("s2")->symlink_target, "target");
  Status missing = Refusal(TarBuilder().Link("b", "nowhere").End());
  ESKER_EXPECT_CODE(missing, Code::kInvalidArgument);
  EXPECT_NE(missing.message().find("nowhere"), std::string::npos);
  ESKER_EXPECT_CODE(Refusal(TarBuilder().Dir("d").Link("b", "d").End()), Code::kInvalidArgument);
}

TEST_F(ImportTest, NamesAreBytes) {
  const std::string latin = "bad\xff\xfe", decomposed = "e\xcc\x81", composed = "\xc3\xa9";
  const std::string long_name = std::string(255, 'n');
  std::string deep;
  for (int i = 0; i < 40; ++i) deep += std::string(200, 'd') + "/";
  ReadBackLayer layer =
      Layer(TarBuilder()
                .File(latin, "1")
                .Add({.name = "x", .content = "2", .pax = {{"path", decomposed}}})
                .Add({.name = "x", .content = "3", .pax = {{"path", composed}}})
                .Add({.name = "x", .content = "4", .pax = {{"path", latin + "2"}}})
                .Add({.name = "x", .content = "5", .pax = {{"path", long_name}}})
                .Add({.name = "x", .content = "6", .pax = {{"path", deep + "f"}}})
                .Add({.name = "x", .type = '2', .pax = {{"path", "s"}, {"linkpath", latin}}})
                .Add({.name = "name", .content = "7", .prefix = "pre/fix"})
                .End());
  EXPECT_EQ(layer.Content(latin), "1");
  EXPECT_EQ(layer.Content(decomposed), "2");
  EXPECT_EQ(layer.Content(composed), "3");
  EXPECT_EQ(layer.Content(latin + "2"), "4");
  EXPECT_EQ(layer.Content(long_name), "5");
  EXPECT_EQ(layer.Content(deep + "f"), "6");
  EXPECT_EQ(layer.Find("s")->symlink_target, latin);
  EXPECT_EQ(layer.Content("pre/fix/name"), "7");
  for (const std::string& bad : {std::string(256, 'n'), std::string("a\0b", 3)}) {
    ESKER_EXPECT_CODE(Refusal(TarBuilder().Add({.name = "x", .pax = {{"path", bad}}}).End()),
                      Code::kInvalidArgument);
  }
}

TEST_F(ImportTest, OldFormatsAndLongNames) {
  const std::string name = std::string(150, 'g') + "/" + std::string(90, 'h');
  const std::string gnu("ustar  \0", 8);
  ReadBackLayer layer =
      Layer(TarBuilder()
                .Add({.name = "v7file", .content = "1", .magic = ""})
                .Add({.name = "v7dir/", .type = '\0', .mode = 0700, .magic = ""})
                .Add({.name = "././@LongLink", .type = 'L', .content = name + '\0', .magic = gnu})
                .Add({.name = "cut", .content = "2", .magic = gnu})
                .Add({.name = "././@LongLink", .type = 'K', .content = name + '\0', .magic = gnu})
                .Add({.name = "sym", .type = '2', .link = "cut", .magic = gnu})
                .Add({.name = "contiguous", .type = '7', .content = "3"})
                .Add({.name = "label", .type = 'V', .magic = gnu})
                .Add({.name = "nt", .content = "4", .size_field = std::string(" 1         \0", 12)})
                .End());
  EXPECT_EQ(layer.Content("v7file"), "1");
  EXPECT_EQ(layer.Find("v7dir")->type, erofs::FileType::kDirectory);
  EXPECT_EQ(layer.Content(name), "2");
  EXPECT_EQ(layer.Find("sym")->symlink_target, name);
  EXPECT_EQ(layer.Content("contiguous"), "3");
  EXPECT_EQ(layer.Find("label"), nullptr);
  EXPECT_EQ(layer.Content("nt"), "4");
  for (char type : {'M', 'N', 'Q', '9'}) {
    ESKER_EXPECT_CODE(Refusal(TarBuilder().Add({.name = "x", .type = type}).End()),
                      Code::kInvalidArgument);
  }
}

TEST_F(ImportTest, OwnersAndTimesBeyondOldLimits) {
  using Pax = std::vector<std::pair<std::string, std::string>>;
  auto one = [&](Pax pax) { return TarBuilder().Add({.name = "f", .pax = std::move(pax)}).End(); };
  ReadBackLayer layer =
      Layer(one({{"uid", "4294967294"}, {"gid", "70000"}, {"mtime", "-1.5"}, {"atime", "1"}}));
  EXPECT_EQ(layer.Find("f")->uid, 4294967294u);
  EXPECT_EQ(layer.Find("f")->gid, 70000u);
  EXPECT_EQ(layer.Find("f")->mtime_seconds, -2);
  EXPECT_EQ(layer.Find("f")->mtime_nanos, 500'000'000u);
  layer = Layer(one({{"mtime", "4102444800.1234567899"}}));
  EXPECT_EQ(layer.Find("f")->mtime_seconds, 4102444800);
  EXPECT_EQ(layer.Find("f")->mtime_nanos, 123'456'789u);
  for (const char* id : {"4294967295", "4294967296", "-1"}) {
    ESKER_EXPECT_CODE(Refusal(one({{"uid", id}})), Code::kInvalidArgument);
  }
  for (const Pax& pax : {Pax{{"uid", "x"}}, Pax{{"mtime", "1.x"}}, Pax{{"size", "-5"}}}) {
    ESKER_EXPECT_CODE(Refusal(one(pax)), Code::kDataLoss);
  }
  // Base-256 numbers, negative too.
  std::string header = TarBuilder::Header({.name = "b"});
  header.replace(136, 12, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe");
  header.replace(108, 8, std::string("\x80\0\0\0\0\1\0\0", 8));
  TarBuilder::Seal(header);
  layer = Layer(header + std::string(1024, '\0'));
  EXPECT_EQ(layer.Find("b")->mtime_seconds, -2);
  EXPECT_EQ(layer.Find("b")->uid, 65536u);
}

TEST_F(ImportTest, XattrsCapabilitiesAndAclsSurvive) {
  const std::string capability("\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
  const std::string binary("a\nb\0c=d", 7);
  ReadBackLayer layer = Layer(
      TarBuilder()
          .Add({.name = "ping",
                .pax = {{"SCHILY.xattr.security.capability", capability},
                        {"SCHILY.xattr.user.bin", binary},
                        {"SCHILY.xattr.security.selinux", "host_label"},
                        {"LIBARCHIVE.xattr.user.a%3Db", "aGk="}}})
          .Add({.name = "dir",
                .type = '5',
                .mode = 0755,
                .pax = {{"SCHILY.acl.access",
                         "user::rwx,user:lisa:r-x:1001,group::r-x,mask::r-x,other::r-x"},
                        {"SCHILY.acl.default",
                         "user::rwx\ngroup:50:rwx\ngroup::r-x\nmask::rwx\nother::---"}}})
          .Add({.name = "described",
                .type = '5',
                .pax = {{"SCHILY.xattr.trusted.esker.implicit", "y"}}})
          .Add({.name = "link",
                .type = '2',
                .link = "x",
                .pax = {{"SCHILY.xattr.trusted.note", "1"}}})
          .Add({.name = "plain", .pax = {{"SCHILY.acl.access", "user::rw-,group::r--,other::r--"}}})
          .End());
  const auto& xattrs = layer.Find("ping")->xattrs;
  EXPECT_EQ(xattrs.size(), 3u);
  EXPECT_EQ(xattrs.at("security.capability"), capability);
  EXPECT_EQ(xattrs.at("user.bin"), binary);
  EXPECT_EQ(xattrs.at("user.a=b"), "hi");
  EXPECT_EQ(layer.Find("link")->xattrs.at("trusted.note"), "1");
  EXPECT_TRUE(layer.Find("described")->xattrs.empty()) << "it has an entry, so it is not implicit";
  EXPECT_TRUE(layer.Find("plain")->xattrs.empty()) << "a minimal ACL is the mode";
  const std::string want(
      "\x02\0\0\0"
      "\x01\0\x07\0\xff\xff\xff\xff"
      "\x02\0\x05\0\xe9\x03\0\0"
      "\x04\0\x05\0\xff\xff\xff\xff"
      "\x10\0\x05\0\xff\xff\xff\xff"
      "\x20\0\x05\0\xff\xff\xff\xff",
      44);
  EXPECT_EQ(layer.Find("dir")->xattrs.at("system.posix_acl_access"), want);
  EXPECT_EQ(layer.Find("dir")->xattrs.at("system.posix_acl_default").size(), 44u);
}

TEST_F(ImportTest, XattrsThatMustNotOrCannotBeKeptAreRefusedLoudly) {
  for (const char* name :
       {"trusted.overlay.opaque", "trusted.overlay.redirect", "trusted.overlay.metacopy"}) {
    Status status = Refusal(
        TarBuilder()
            .Add({.name = "d", .type = '5', .pax = {{std::string("SCHILY.xattr.") + name, "y"}}})
            .End());
    ESKER_EXPECT_CODE(status, Code::kInvalidArgument);
    EXPECT_NE(status.message().find(name), std::string::npos);
  }
  ESKER_EXPECT_CODE(
      Refusal(TarBuilder().Add({.name = "f", .pax = {{"SCHILY.xattr.com.apple.x", "y"}}}).End()),
      Code::kInvalidArgument);
  ESKER_EXPECT_CODE(
      Refusal(
          TarBuilder().Add({.name = "f", .pax = {{"SCHILY.acl.access", "user:lisa:r--"}}}).End()),
      Code::kInvalidArgument);
}

TEST_F(ImportTest, GlobalHeadersApplyUntilOverridden) {
  ReadBackLayer layer =
      Layer(TarBuilder()
                .Add({.name = "g",
                      .type = 'g',
                      .content = TarBuilder::PaxBody({{"comment", "abc"}, {"uid", "5"}})})
                .File("a", "a")
                .Add({.name = "b", .content = "b", .pax = {{"uid", "6"}}})
                .Add({.name = "c", .content = "c", .uid = 9, .pax = {{"uid", ""}}})
                .End());
  EXPECT_EQ(layer.Find("a")->uid, 5u);
  EXPECT_EQ(layer.Find("b")->uid, 6u);
  EXPECT_EQ(layer.Find("c")->uid, 9u);
}

}  // namespace
}  // namespace esker
