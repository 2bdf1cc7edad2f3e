// Layers on top of each other, mounted by the kernel, beside GNU tar that unpacks one tar over the
// other: what an image's user sees of directories that not every layer describes.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "../erofs/testing/kernel_mount.h"
#include "base/process.h"
#include "imagefs/implicit_directories.h"
#include "testing/import_fixture.h"
#include "testing/tar_builder.h"

namespace esker {
namespace {

namespace fs = std::filesystem;
using testing::TarBuilder;

class LayerStackTest : public testing::ImportTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "owners and mounts need root";
    ImportTest::SetUp();
    unpacked_ = dir_->path() + "/unpacked";
    fs::create_directory(unpacked_);
  }

  // One more layer, on top; GNU tar unpacks it over the ones before.
  void Push(const std::string& tar) {
    const std::string path = dir_->path() + "/layer.tar";
    std::ofstream(path, std::ios::binary) << tar;
    Result<CommandOutput> output =
        RunCommand({"tar", "--extract", "--file", path, "--directory", unpacked_, "--numeric-owner",
                    "--same-owner", "--same-permissions", "--xattrs", "--xattrs-include=*"});
    ASSERT_TRUE(output.ok()) << output.status().ToString();
    ASSERT_EQ(output->exit_code, 0) << output->out;
    Result<ImportedLayer> imported = Import(tar);
    ASSERT_TRUE(imported.ok()) << imported.status().ToString();
    metadata_.push_back(*lookup_.ReadBlob(*store_, imported->layer.metadata));
    data_.push_back(imported->layer.has_data() ? *lookup_.ReadBlob(*store_, imported->layer.data)
                                               : "");
  }

  // Mounts all layers as an image of them has them.
  void Mount() {
    erofs::ImplicitDirectories directories;
    auto bytes = [](const std::string& text) {
      return std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    };
    for (const std::string& image : metadata_) {
      ASSERT_TRUE(directories.Want(bytes(image)).ok());
    }
    for (size_t i = 0; i < metadata_.size(); ++i) {
      auto mended = directories.Resolve(bytes(metadata_[i]));
      ASSERT_TRUE(mended.ok()) << mended.status().ToString();
      const std::string metadata = dir_->path() + "/metadata" + std::to_string(i);
      const std::string data = data_[i].empty() ? "" : dir_->path() + "/data" + std::to_string(i);
      std::ofstream(metadata, std::ios::binary) << (*mended ? **mended : metadata_[i]);
      if (!data.empty()) std::ofstream(data, std::ios::binary) << data_[i];
      Result<UniqueFd> mount = erofs::MountErofs(metadata, data);
      ASSERT_TRUE(mount.ok()) << mount.status().ToString();
      layers_.insert(layers_.begin(), std::move(*mount));
    }
    std::vector<int> descriptors;
    for (const UniqueFd& layer : layers_) descriptors.push_back(layer.get());
    Result<UniqueFd> overlay = erofs::MountOverlay(descriptors);
    if (!overlay.ok() && overlay.status().error_number() == EINVAL) {
      GTEST_SKIP() << "overlay layers by descriptor need Linux 6.13: "
                   << overlay.status().ToString();
    }
    ASSERT_TRUE(overlay.ok()) << overlay.status().ToString();
    merged_ = std::move(*overlay);
  }

  struct stat Merged(const std::string& path) {
    struct stat st = {};
    EXPECT_EQ(::fstatat(merged_.get(), path.c_str(), &st, AT_SYMLINK_NOFOLLOW), 0) << path;
    return st;
  }
  bool Exists(const std::string& path) {
    return ::faccessat(merged_.get(), path.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
  }
  void ExpectAsUnpacked(const std::string& path) {
    struct stat want = {};
    ASSERT_EQ(::lstat((unpacked_ + "/" + path).c_str(), &want), 0) << path;
    const struct stat found = Merged(path);
    EXPECT_EQ(found.st_mode, want.st_mode) << path;
    EXPECT_EQ(found.st_uid, want.st_uid) << path;
    EXPECT_EQ(found.st_gid, want.st_gid) << path;
  }

  std::string unpacked_;
  std::vector<std::string> metadata_, data_;  // lowest first
  std::vector<UniqueFd> layers_;              // uppermost first
  UniqueFd merged_;
};

TEST_F(LayerStackTest, DirectoriesThatAnUpperLayerDoesNotMentionKeepTheirAttributes) {
  Push(TarBuilder()
           .Dir("./", 0711)
           .Add({.name = "srv/", .type = '5', .mode = 02750, .uid = 33, .gid = 44, .mtime = 12345})
           .Add({.name = "srv/in/",
                 .type = '5',
                 .mode = 01777,
                 .uid = 5,
                 .gid = 6,
                 .pax = {{"SCHILY.xattr.user.note", "kept"}, {"mtime", "100.000000007"}}})
           .File("srv/in/old", "old")
           .Dir("plain/", 0700)
           .End());
  Push(TarBuilder().File("srv/in/new", "new").File("made/here", "x").End());
  Push(TarBuilder().Dir("plain/", 0750).File("srv/in/.wh.old", "").End());
  Mount();
  if (IsSkipped() || HasFatalFailure()) return;
  for (const char* path : {".", "srv", "srv/in", "srv/in/new", "made", "made/here", "plain"}) {
    ExpectAsUnpacked(path);
  }
  EXPECT_EQ(Merged("srv").st_mode & 07777, 02750u);
  EXPECT_EQ(Merged("srv").st_mtim.tv_sec, 12345);
  EXPECT_EQ(Merged("srv/in").st_mtim.tv_sec, 100);
  EXPECT_EQ(Merged("srv/in").st_mtim.tv_nsec, 7);
  EXPECT_EQ(Merged(".").st_mode & 07777, 0711u);
  EXPECT_FALSE(Exists("srv/in/old"));
  UniqueFd directory(::openat(merged_.get(), "srv/in", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  char value[16] = {};
  EXPECT_EQ(::fgetxattr(directory.get(), "user.note", value, sizeof(value)), 4);
  EXPECT_STREQ(value, "kept");
}

TEST_F(LayerStackTest, OpaqueDirectoriesHideWhatLiesBelowAndNothingElse) {
  Push(TarBuilder()
           .Add({.name = "d/", .type = '5', .mode = 0700, .uid = 9})
           .File("d/old", "old")
           .Dir("d/sub/", 0711)
           .File("d/sub/old", "old")
           .End());
  Push(TarBuilder().File("d/sub/new", "new").File("d/.wh..wh..opq", "").End());
  Mount();
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_TRUE(Exists("d/sub/new"));
  EXPECT_FALSE(Exists("d/old"));
  EXPECT_FALSE(Exists("d/sub/old"));
  ExpectAsUnpacked("d");
  EXPECT_EQ(Merged("d/sub").st_mode & 07777, 0755u) << "the lower one is hidden";
}

TEST_F(LayerStackTest, AHardLinkWhoseTargetALaterLayerDeletesStaysWhole) {
  Push(TarBuilder().File("implicit/a", "shared bytes").Link("b", "implicit/a").End());
  Push(TarBuilder().File("implicit/.wh.a", "").End());
  Mount();
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_FALSE(Exists("implicit/a"));
  UniqueFd file(::openat(merged_.get(), "b", O_RDONLY | O_CLOEXEC));
  char text[32] = {};
  EXPECT_EQ(::read(file.get(), text, sizeof(text)), 12);
  EXPECT_STREQ(text, "shared bytes");
}

TEST_F(LayerStackTest, AHundredAndTwentyEightLayersMount) {
  constexpr int kLayers = 128;
  for (int i = 0; i < kLayers; ++i) {
    TarBuilder tar;
    const std::string number = std::to_string(i);
    if (i == 0) tar.Add({.name = "all/", .type = '5', .mode = 0750, .uid = 77});
    tar.File("all/" + number, number).File("top", number);
    if (i % 2 == 1) tar.File("all/.wh." + std::to_string(i - 1), "");
    Push(tar.End());
    if (HasFatalFailure()) return;
  }
  Mount();
  if (IsSkipped() || HasFatalFailure()) return;
  for (int i = 0; i < kLayers; ++i) EXPECT_EQ(Exists("all/" + std::to_string(i)), i % 2 == 1) << i;
  ExpectAsUnpacked("all");
  UniqueFd file(::openat(merged_.get(), "top", O_RDONLY | O_CLOEXEC));
  char text[32] = {};
  EXPECT_EQ(::read(file.get(), text, sizeof(text)), 3);
  EXPECT_STREQ(text, "127");
}

}  // namespace
}  // namespace esker
