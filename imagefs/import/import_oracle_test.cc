// Other people's tools write archives, GNU tar unpacks them, and what we import must be the same:
// read by ourselves, and mounted by the kernel from the blobs as the product mounts them.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "../erofs/testing/compare.h"
#include "../erofs/testing/kernel_mount.h"
#include "base/process.h"
#include "testing/import_fixture.h"

namespace esker {
namespace {

namespace fs = std::filesystem;

class ImportOracleTest : public testing::ImportTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "owners, devices and mounts need root";
    ImportTest::SetUp();
    source_ = dir_->path() + "/source";
    fs::create_directory(source_);
  }
  void Run(std::vector<std::string> argv) {
    Result<CommandOutput> output = RunCommand(argv);
    ASSERT_TRUE(output.ok()) << output.status().ToString();
    ASSERT_EQ(output->exit_code, 0) << argv[0] << ": " << output->out;
  }
  std::string At(const std::string& name) const { return source_ + "/" + name; }

  // What every format can hold.
  void MakeSimpleTree() {
    fs::create_directories(At("dir/sub"));
    std::ofstream(At("dir/file")) << "content";
    std::ofstream(At("empty")) << "";
    std::mt19937 random(1);
    std::string noise(3'500'000, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    std::ofstream(At("large"), std::ios::binary) << noise;
    fs::create_hard_link(At("dir/file"), At("dir/sub/linked"));
    fs::create_symlink("../dir/file", At("dir/sub/symlink"));
    ASSERT_EQ(::chown(At("dir/file").c_str(), 1000, 2000), 0);
    ASSERT_EQ(::chmod(At("dir/file").c_str(), 06751), 0);
    ASSERT_EQ(::chmod(At("dir").c_str(), 01777), 0);
  }
  void MakeRichTree() {
    MakeSimpleTree();
    const std::string deep = At(std::string(120, 'p')) + "/" + std::string(130, 'q');
    fs::create_directories(deep);
    std::ofstream(deep + "/" + std::string(200, 'r')) << "deep";
    std::ofstream(At("name-\xff\xfe")) << "not UTF-8";
    std::ofstream(At("e\xcc\x81")) << "decomposed";
    fs::create_symlink(std::string(300, 't'), At("longlink"));
    ASSERT_EQ(::mkfifo(At("fifo").c_str(), 0600), 0);
    ASSERT_EQ(::mknod(At("null").c_str(), S_IFCHR | 0666, makedev(1, 3)), 0);
    ASSERT_EQ(::mknod(At("loop").c_str(), S_IFBLK | 0660, makedev(7, 300)), 0);
    ASSERT_EQ(::chown(At("empty").c_str(), 3'000'000'000u, 4'000'000'000u), 0);
  }
  void MakeSparseFiles() {
    UniqueFd fd = *OpenFile(At("sparse"), O_RDWR | O_CREAT);
    for (uint64_t i = 0; i < 60; ++i) {  // more runs than any header block holds
      ASSERT_TRUE(PWriteFull(fd.get(), "some data here", 14, i * 300'000 + 7).ok());
    }
    ASSERT_EQ(::ftruncate(fd.get(), 40'000'001), 0);
    UniqueFd hole = *OpenFile(At("all-hole"), O_RDWR | O_CREAT);
    ASSERT_EQ(::ftruncate(hole.get(), 5'000'000), 0);
  }
  void MakeXattrs() {
    ASSERT_EQ(::setxattr(At("empty").c_str(), "user.note", "a\0\n=b", 5, 0), 0);
    const char capability[] = "\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0";
    ASSERT_EQ(::setxattr(At("large").c_str(), "security.capability", capability, 20, 0), 0);
    ASSERT_EQ(::lsetxattr(At("longlink").c_str(), "trusted.link", "x", 1, 0), 0);
    const char acl[] =
        "\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x05\0\xe9\x03\0\0"
        "\x04\0\x05\0\xff\xff\xff\xff\x10\0\x05\0\xff\xff\xff\xff\x20\0\x05\0\xff\xff\xff\xff";
    ASSERT_EQ(::setxattr(At("dir").c_str(), "system.posix_acl_access", acl, 44, 0), 0);
    ASSERT_EQ(::setxattr(At("dir").c_str(), "system.posix_acl_default", acl, 44, 0), 0);
  }

  void ExpectImportEqualsExtraction(const std::string& tool, const std::string& tar) {
    std::string unpacked = dir_->path() + "/unpacked";
    if (tool == "bsdtar") {
      // Neither tool restores all of its directories' times; but its format loses nothing.
      unpacked = source_;
    } else {
      fs::create_directory(unpacked);
      Run({"tar", "--extract", "--file", tar, "--directory", unpacked, "--numeric-owner",
           "--same-owner", "--same-permissions", "--xattrs", "--xattrs-include=*", "--acls"});
    }
    UniqueFd archive = *OpenFile(tar, O_RDONLY);
    Result<ImportedLayer> imported =
        ImportTar(*FdSource(archive.get()), *store_, lookup_, ImportOptions());
    ASSERT_TRUE(imported.ok()) << imported.status().ToString();
    lookup_.Register(imported->pack);
    std::string metadata = *lookup_.ReadBlob(*store_, imported->layer.metadata);
    std::string data =
        imported->layer.has_data() ? *lookup_.ReadBlob(*store_, imported->layer.data) : "";
    Result<erofs::Tree> tree =
        erofs::ReadTree({reinterpret_cast<const uint8_t*>(metadata.data()), metadata.size()});
    ASSERT_TRUE(tree.ok()) << tree.status().ToString();
    // Where holes lie is the file system's business there, and directories' link counts.
    UniqueFd unpacked_fd = *OpenFile(unpacked, O_RDONLY | O_DIRECTORY);
    EXPECT_EQ(erofs::CompareDirectory(*tree, unpacked_fd.get(), data,
                                      {.directory_links = false, .holes = false}),
              "");
    const std::string metadata_path = dir_->path() + "/metadata",
                      data_path = dir_->path() + "/data";
    fs::remove(metadata_path);
    fs::remove(data_path);
    std::ofstream(metadata_path, std::ios::binary) << metadata;
    std::ofstream(data_path, std::ios::binary) << data;
    Result<UniqueFd> mount = erofs::MountErofs(metadata_path, data.empty() ? "" : data_path);
    ASSERT_TRUE(mount.ok()) << mount.status().ToString();
    EXPECT_EQ(erofs::CompareDirectory(*tree, mount->get(), data, {}), "");
    mount->reset();
    if (unpacked != source_) fs::remove_all(unpacked);
  }
  void CheckArchive(std::vector<std::string> writer) {
    SCOPED_TRACE(::testing::PrintToString(writer));
    const std::string tar = dir_->path() + "/archive.tar";
    writer.insert(writer.begin() + 1, {"-cf", tar, "-C", source_, "--numeric-owner"});
    writer.push_back(".");
    Run(writer);
    if (HasFatalFailure()) return;
    ExpectImportEqualsExtraction(writer[0], tar);
  }
  std::string source_;
};

TEST_F(ImportOracleTest, EveryTarFormatOfASimpleTree) {
  MakeSimpleTree();
  for (const char* format : {"v7", "ustar", "oldgnu", "gnu", "pax"}) {
    CheckArchive({"tar", std::string("--format=") + format});
  }
}

TEST_F(ImportOracleTest, RichTreesInFormatsThatHoldThem) {
  MakeRichTree();
  CheckArchive({"tar", "--format=gnu"});
  CheckArchive({"tar", "--format=pax"});
  CheckArchive({"bsdtar", "--format=pax"});
}

TEST_F(ImportOracleTest, XattrsAndAcls) {
  MakeRichTree();
  MakeXattrs();
  CheckArchive({"tar", "--format=pax", "--xattrs", "--xattrs-include=*", "--acls"});
}

TEST_F(ImportOracleTest, SparseFilesInAllFormats) {
  MakeSimpleTree();
  MakeSparseFiles();
  CheckArchive({"tar", "--sparse", "--format=oldgnu"});
  CheckArchive({"tar", "--sparse", "--format=gnu"});
  for (const char* version : {"0.0", "0.1", "1.0"}) {
    CheckArchive({"tar", "--sparse", "--format=pax", std::string("--sparse-version=") + version});
  }
}

TEST_F(ImportOracleTest, CompressedByTheUsualTools) {
  MakeRichTree();
  for (const char* flag : {"--gzip", "--zstd", "--xz"}) CheckArchive({"tar", flag});
}

TEST_F(ImportOracleTest, AnImportedDirectoryIsThatDirectory) {
  MakeRichTree();
  MakeXattrs();
  MakeSparseFiles();
  UniqueFd fd = *OpenFile(source_, O_RDONLY | O_DIRECTORY);
  Result<ImportedLayer> imported =
      ImportDirectory(fd.get(), DirectoryKind::kOverlayUpper, *store_, lookup_, ImportOptions());
  ASSERT_TRUE(imported.ok()) << imported.status().ToString();
  lookup_.Register(imported->pack);
  std::string metadata = *lookup_.ReadBlob(*store_, imported->layer.metadata);
  std::string data = *lookup_.ReadBlob(*store_, imported->layer.data);
  Result<erofs::Tree> tree =
      erofs::ReadTree({reinterpret_cast<const uint8_t*>(metadata.data()), metadata.size()});
  ASSERT_TRUE(tree.ok()) << tree.status().ToString();
  EXPECT_EQ(
      erofs::CompareDirectory(*tree, fd.get(), data, {.directory_links = false, .holes = false}),
      "");
}

}  // namespace
}  // namespace esker
