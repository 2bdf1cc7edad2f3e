#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/digest.h"
#include "testing/import_fixture.h"

namespace esker {
namespace {

using testing::ImportTest;
using testing::ReadBackLayer;

namespace fs = std::filesystem;

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

class ImportDirectoryTest : public ImportTest {
 protected:
  void SetUp() override {
    ImportTest::SetUp();
    root_ = dir_->path() + "/tree";
    fs::create_directory(root_);
  }
  std::string At(const std::string& name) const { return root_ + "/" + name; }
  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(At(name), std::ios::binary) << content;
  }
  Result<ImportedLayer> Walk(
      DirectoryKind kind, const ImportOptions& options = {},
      const std::function<std::optional<std::string>(const ImageLayer&)>& extra = nullptr) {
    UniqueFd fd = *OpenFile(root_, O_RDONLY | O_DIRECTORY);
    Result<ImportedLayer> layer = ImportDirectory(fd.get(), kind, *store_, lookup_, options, extra);
    if (layer.ok()) lookup_.Register(layer->pack);
    return layer;
  }
  ReadBackLayer Layer(DirectoryKind kind) {
    Result<ImportedLayer> imported = Walk(kind);
    EXPECT_TRUE(imported.ok()) << imported.status().ToString();
    if (!imported.ok()) return ReadBackLayer({}, "");
    Result<ReadBackLayer> layer = Load(imported->layer);
    EXPECT_TRUE(layer.ok()) << layer.status().ToString();
    return layer.ok() ? std::move(*layer) : ReadBackLayer({}, "");
  }
  std::string root_;
};

TEST_F(ImportDirectoryTest, EveryKindOfFileSurvives) {
  fs::create_directories(At("d/e"));
  Write("d/e/file", "content");
  Write("d/.wh.x", "a name, not a whiteout");
  Write("empty", "");
  ASSERT_EQ(::chmod(At("d/e/file").c_str(), 04711), 0);
  ASSERT_EQ(::link(At("d/e/file").c_str(), At("linked").c_str()), 0);
  ASSERT_EQ(::symlink("/etc", At("s").c_str()), 0);
  ASSERT_EQ(::link(At("s").c_str(), At("s2").c_str()), 0);
  ASSERT_EQ(::mkfifo(At("fifo").c_str(), 0640), 0);
  UniqueFd socket_fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof(address.sun_path), "%s", At("sock").c_str());
  ASSERT_EQ(::bind(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::setxattr(At("empty").c_str(), "user.note", "a\0b", 3, 0), 0);
  ASSERT_EQ(::setxattr(At("d").c_str(), "user.large", std::string(2000, 'x').data(), 2000, 0), 0);
  timespec times[2] = {{1, 2}, {-5, 123456789}};
  ASSERT_EQ(::utimensat(AT_FDCWD, At("empty").c_str(), times, 0), 0);

  ReadBackLayer layer = Layer(DirectoryKind::kPlain);
  EXPECT_EQ(layer.Content("d/e/file"), "content");
  EXPECT_EQ(layer.Find("d/e/file")->mode, 04711);
  EXPECT_EQ(layer.Find("d/e/file")->uid, ::geteuid());
  EXPECT_EQ(layer.tree().LinkCount("linked"), 2u);
  EXPECT_EQ(layer.Content("d/.wh.x"), "a name, not a whiteout");
  EXPECT_EQ(layer.Find("s")->symlink_target, "/etc");
  EXPECT_EQ(layer.tree().LinkCount("s2"), 2u);
  EXPECT_EQ(layer.Find("fifo")->type, erofs::FileType::kFifo);
  EXPECT_EQ(layer.Find("fifo")->mode, 0640);
  EXPECT_EQ(layer.Find("sock")->type, erofs::FileType::kSocket);
  EXPECT_EQ(layer.Find("empty")->xattrs.at("user.note"), std::string("a\0b", 3));
  EXPECT_EQ(layer.Find("d")->xattrs.at("user.large"), std::string(2000, 'x'));
  EXPECT_EQ(layer.Find("empty")->mtime_seconds, -5);
  EXPECT_EQ(layer.Find("empty")->mtime_nanos, 123456789u);
}

TEST_F(ImportDirectoryTest, TheSameTreeGivesTheSameIdsAndStoresNothing) {
  for (int i = 0; i < 50; ++i) Write("f" + std::to_string(i), std::string(10'000, 'a' + i % 26));
  Result<ImportedLayer> first = Walk(DirectoryKind::kPlain);
  Result<ImportedLayer> second = Walk(DirectoryKind::kOverlayUpper);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->layer.metadata, second->layer.metadata);
  EXPECT_EQ(first->layer.data, second->layer.data);
  EXPECT_EQ(second->totals.bytes_stored, 0u);
  EXPECT_EQ(first->layer.diff_id, "");
  EXPECT_EQ(first->totals.entries, 50u);
}

TEST_F(ImportDirectoryTest, SparseFilesStaySparse) {
  UniqueFd fd = *OpenFile(At("sparse"), O_RDWR | O_CREAT);
  ASSERT_TRUE(PWriteFull(fd.get(), "start", 5, 0).ok());
  ASSERT_TRUE(PWriteFull(fd.get(), "middle", 6, (uint64_t{40} << 20) + 5).ok());
  ASSERT_EQ(::ftruncate(fd.get(), (int64_t{1} << 40) + 1), 0);
  UniqueFd hole = *OpenFile(At("hole"), O_RDWR | O_CREAT);
  ASSERT_EQ(::ftruncate(hole.get(), 12345), 0);
  Result<ImportedLayer> imported = Walk(DirectoryKind::kPlain);
  ASSERT_TRUE(imported.ok()) << imported.status().ToString();
  EXPECT_LE(imported->layer.data_bytes, 2u << 20);
  EXPECT_LE(imported->layer.metadata_bytes, 10u << 20);
  EXPECT_LE(imported->pack.file_bytes, 64u << 10);
  Result<ReadBackLayer> layer = Load(imported->layer);
  ASSERT_TRUE(layer.ok()) << layer.status().ToString();
  EXPECT_EQ(layer->Find("sparse")->size, (uint64_t{1} << 40) + 1);
  ASSERT_EQ(layer->Find("sparse")->extents.size(), 2u);
  EXPECT_EQ(layer->Find("sparse")->extents[1].file_offset, uint64_t{40} << 20);
  EXPECT_EQ(layer->Content("hole"), std::string(12345, '\0'));
}

TEST_F(ImportDirectoryTest, AnUppersMarkersAreKept) {
  fs::create_directories(At("opaque/sub"));
  Write("file", "f");
  ASSERT_EQ(::mknod(At("gone").c_str(), S_IFCHR, 0), 0) << "the kernel lets anyone do this";
  ReadBackLayer layer = Layer(DirectoryKind::kOverlayUpper);
  EXPECT_TRUE(layer.IsWhiteout("gone"));
  Status plain = Walk(DirectoryKind::kPlain).status();
  ESKER_EXPECT_CODE(plain, Code::kInvalidArgument);
  EXPECT_NE(plain.message().find("gone"), std::string::npos);
  if (::geteuid() != 0) GTEST_SKIP() << "trusted.* attributes need root";

  ASSERT_EQ(::setxattr(At("opaque").c_str(), "trusted.overlay.opaque", "y", 1, 0), 0);
  ASSERT_EQ(::setxattr(At("opaque/sub").c_str(), "trusted.overlay.origin", "xyz", 3, 0), 0);
  // Copied up from a layer with directories that it did not describe.
  ASSERT_EQ(::setxattr(At("opaque/sub").c_str(), "trusted.esker.implicit", "y", 1, 0), 0);
  ASSERT_EQ(::setxattr(At("file").c_str(), "trusted.overlay.impure", "y", 1, 0), 0);
  ASSERT_EQ(::setxattr(At("file").c_str(), "trusted.mine", "1", 1, 0), 0);
  layer = Layer(DirectoryKind::kOverlayUpper);
  EXPECT_TRUE(layer.IsOpaque("opaque"));
  EXPECT_TRUE(layer.Find("opaque/sub")->xattrs.empty());
  EXPECT_EQ(layer.Find("file")->xattrs.size(), 1u);
  fs::remove(At("gone"));
  layer = Layer(DirectoryKind::kPlain);
  EXPECT_FALSE(layer.IsOpaque("opaque")) << "in a plain directory it means nothing";
  EXPECT_TRUE(layer.Find("file")->xattrs.empty());

  for (const char* name : {"trusted.overlay.redirect", "trusted.overlay.metacopy"}) {
    ASSERT_EQ(::setxattr(At("file").c_str(), name, "", 0, 0), 0);
    Status status = Walk(DirectoryKind::kOverlayUpper).status();
    ESKER_EXPECT_CODE(status, Code::kFailedPrecondition);
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
    ASSERT_EQ(::removexattr(At("file").c_str(), name), 0);
  }
}

TEST_F(ImportDirectoryTest, DepthCostsNoDescriptors) {
  // Deeper than any path that a system call takes, and than the limit of open files.
  constexpr int kDepth = 1500;
  UniqueFd at = *OpenFile(root_, O_RDONLY | O_DIRECTORY);
  for (int i = 0; i < kDepth; ++i) {
    ASSERT_EQ(::mkdirat(at.get(), "deep", 0700), 0);
    at = *OpenFileAt(at.get(), "deep", O_RDONLY | O_DIRECTORY);
    if (i % 100 == 0) {
      // Found after coming back up through directories that were closed.
      UniqueFd file = *OpenFileAt(at.get(), "z", O_WRONLY | O_CREAT);
      ASSERT_TRUE(WriteFull(file.get(), "z", 1).ok());
    }
  }
  at.reset();
  const int before = OpenDescriptors();
  int most = 0, ticks = 0;
  ImportOptions options;
  options.cancelled = [&] {
    if (++ticks % 50 == 0) most = std::max(most, OpenDescriptors());
    return false;
  };
  Result<ImportedLayer> imported = Walk(DirectoryKind::kPlain, options);
  ASSERT_TRUE(imported.ok()) << imported.status().ToString();
  EXPECT_LT(most - before, 150);
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_EQ(imported->totals.entries, kDepth + 15u);
  EXPECT_TRUE(RemoveTree(root_).ok());
}

TEST_F(ImportDirectoryTest, WhatChangesMeanwhileIsATypedError) {
  Write("a", std::string(3 << 20, 'a'));
  Write("b", "b");
  struct {
    std::function<void()> change;
    int at_tick;
  } cases[] = {
      {[&] { std::ofstream(At("a"), std::ios::app) << "more"; }, 3},
      {[&] { fs::resize_file(At("a"), 1 << 20); }, 3},
      {[&] { fs::remove(At("b")); }, 2},
  };
  for (auto& one : cases) {
    Write("a", std::string(3 << 20, 'a'));
    Write("b", "b");
    int ticks = 0;
    ImportOptions options;
    options.cancelled = [&] {
      if (++ticks == one.at_tick) one.change();
      return false;
    };
    ESKER_EXPECT_CODE(Walk(DirectoryKind::kPlain, options).status(), Code::kAborted);
  }
  EXPECT_TRUE(store_->ListPacks()->empty());
}

TEST_F(ImportDirectoryTest, TheManifestIsInTheSamePack) {
  Write("f", "content");
  Result<ImportedLayer> imported =
      Walk(DirectoryKind::kOverlayUpper, {}, [](const ImageLayer& layer) {
        Manifest manifest;
        manifest.kind = "snapshot";
        manifest.layers = {layer};
        return std::optional(manifest.ToJson());
      });
  ASSERT_TRUE(imported.ok()) << imported.status().ToString();
  EXPECT_EQ(store_->ListPacks()->size(), 1u);
  Result<PackFooter> footer = ReadPackFooter(*store_, imported->pack.id);
  ASSERT_TRUE(footer.ok());
  ASSERT_EQ(footer->manifests.size(), 1u);
  Result<Manifest> manifest = Manifest::FromJson(footer->manifests[0]);
  ASSERT_TRUE(manifest.ok()) << manifest.status().ToString();
  EXPECT_EQ(manifest->layers[0].metadata, imported->layer.metadata);
}

TEST_F(ImportDirectoryTest, AnEmptyDirectoryIsAnEmptyLayer) {
  ASSERT_EQ(::chmod(root_.c_str(), 01777), 0);
  ReadBackLayer layer = Layer(DirectoryKind::kOverlayUpper);
  EXPECT_EQ(layer.tree().inode_count(), 1u);
  EXPECT_EQ(layer.Find("")->mode, 01777);
  UniqueFd file = *OpenFile(At("f"), O_RDWR | O_CREAT);
  ESKER_EXPECT_CODE(
      ImportDirectory(file.get(), DirectoryKind::kPlain, *store_, lookup_, {}).status(),
      Code::kInvalidArgument);
}

}  // namespace
}  // namespace esker
