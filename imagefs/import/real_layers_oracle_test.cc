// Layers as they are in the world: what the kernel shows of our image, and what fsck.erofs takes
// out of it, beside what Python's tarfile reads in the tar (testing/tar_reference.py).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <filesystem>
#include <fstream>

#include "base/process.h"
#include "testing/mounted_layer.h"
#include "testing/tar_builder.h"

namespace esker {
namespace {

namespace fs = std::filesystem;
using testing::LayerFiles;
using testing::TarBuilder;

class RealLayersTest : public testing::ImportTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "mounts and owners need root";
    ImportTest::SetUp();
  }

  std::string Run(const std::vector<std::string>& argv) {
    Result<CommandOutput> output = RunCommand(argv);
    EXPECT_TRUE(output.ok()) << output.status().ToString();
    if (!output.ok()) return "";
    EXPECT_EQ(output->exit_code, 0) << argv[0] << ": " << output->out;
    return output->out;
  }

  void ExpectAsInTheTar(const std::string& tar, const std::string& directory,
                        const std::string& without = "") {
    Run({"python3", ESKER_TAR_REFERENCE, tar, directory, "--without", without});
  }

  // Imports the archive and asks both oracles.
  void Check(const std::string& tar, bool with_fsck = true) {
    SCOPED_TRACE(tar);
    UniqueFd archive = *OpenFile(tar, O_RDONLY);
    Result<ImportedLayer> imported = ImportTar(*FdSource(archive.get()), *store_, lookup_, {});
    ASSERT_TRUE(imported.ok()) << imported.status().ToString();
    lookup_.Register(imported->pack);
    Result<LayerFiles> files =
        testing::WriteLayerFiles(*store_, lookup_, imported->layer, dir_->path());
    ASSERT_TRUE(files.ok()) << files.status().ToString();
    Result<UniqueFd> mount = erofs::MountErofs(files->metadata, files->data);
    ASSERT_TRUE(mount.ok()) << mount.status().ToString();
    ExpectAsInTheTar(tar, testing::PathOfDescriptor(mount->get()));
    mount->reset();
    if (with_fsck) CheckFsck(tar, *files);
  }

  // erofs-utils 1.5 extracts no attributes, copies for hard links, no set-id bits, and leaves holes
  // out (docs/decisions/0004-erofs-writer.md).
  void CheckFsck(const std::string& tar, const LayerFiles& files) {
    const std::string out = dir_->path() + "/extracted";
    fs::create_directory(out);
    std::vector<std::string> argv = {"fsck.erofs", "--extract=" + out};
    if (!files.data.empty()) argv.push_back("--device=" + files.data);
    argv.push_back(files.metadata);
    if (!fs::exists("/usr/bin/fsck.erofs")) GTEST_SKIP() << "erofs-utils is not installed";
    Run(argv);
    ExpectAsInTheTar(tar, out, "xattrs,links,set-id,holes");
    fs::remove_all(out);
  }

  std::string Save(const std::string& name, const std::string& bytes) {
    const std::string path = dir_->path() + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
};

// Debian roots with whiteouts, as `tools/dev demo` makes them.
TEST_F(RealLayersTest, EveryLayerOfTheDemoImage) {
  const fs::path blobs = fs::path(ESKER_SOURCE_DIR) / ".dev/demo-image/oci/blobs/sha256";
  if (!fs::exists(blobs)) GTEST_SKIP() << "tools/dev demo has not made its image here";
  int layers = 0;
  for (const auto& blob : fs::directory_iterator(blobs)) {
    std::ifstream file(blob.path(), std::ios::binary);
    char magic[2] = {};
    file.read(magic, 2);
    if (magic[0] != '\x1f' || magic[1] != '\x8b') continue;
    ++layers;
    Check(blob.path());
  }
  EXPECT_GE(layers, 2);
}

TEST_F(RealLayersTest, PartsOfThisMachine) {
  const std::string tar = dir_->path() + "/host.tar";
  // Files that come and go while tar reads are no failure of ours.
  Result<CommandOutput> made =
      RunCommand({"tar", "-cf", tar, "--format=pax", "--numeric-owner", "--xattrs",
                  "--warning=no-file-changed", "-C", "/", "etc", "usr/sbin", "usr/lib/systemd"});
  ASSERT_TRUE(made.ok() && made->exit_code <= 1) << made->out;
  Check(tar);
}

// As in the official image: one file under about 300 names.
TEST_F(RealLayersTest, AllHardLinksOfBusybox) {
  if (!fs::exists("/usr/bin/busybox")) GTEST_SKIP() << "busybox is not installed";
  const std::string root = dir_->path() + "/busybox";
  fs::create_directories(root + "/bin");
  fs::copy("/usr/bin/busybox", root + "/bin/busybox");
  std::string names = Run({"/usr/bin/busybox", "--list"});
  int links = 0;
  for (size_t at = 0; at < names.size();) {
    const size_t end = names.find('\n', at);
    const std::string name = names.substr(at, end - at);
    at = end == names.npos ? names.size() : end + 1;
    if (name.empty() || name == "busybox") continue;
    fs::create_hard_link(root + "/bin/busybox", root + "/bin/" + name);
    ++links;
  }
  EXPECT_GT(links, 250);
  const std::string tar = dir_->path() + "/busybox.tar";
  Run({"tar", "-cf", tar, "--numeric-owner", "-C", root, "."});
  Check(tar);
}

TEST_F(RealLayersTest, AHundredThousandNamesInOneDirectory) {
  TarBuilder tar;
  for (int i = 0; i < 100'000; ++i) {
    tar.File("big/" + std::to_string(i * 7919 % 1'000'003), i % 1000 == 0 ? "content" : "");
  }
  Check(Save("big.tar", tar.End()), /*with_fsck=*/false);
}

}  // namespace
}  // namespace esker
