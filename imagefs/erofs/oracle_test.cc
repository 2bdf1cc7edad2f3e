// Two independent readers of our images: the kernel (mounted as the product mounts) and
// erofs-utils.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "base/process.h"
#include "base/temp_dir.h"
#include "format.h"
#include "imagefs/erofs.h"
#include "testing/compare.h"
#include "testing/kernel_mount.h"
#include "testing/random_tree.h"
#include "tree_impl.h"

namespace esker::erofs {
namespace {

std::span<const uint8_t> Bytes(const std::string& image) {
  return {reinterpret_cast<const uint8_t*>(image.data()), image.size()};
}

std::string RandomBytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

int OpenDescriptors() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}
std::string MountTable() {
  std::ifstream file("/proc/self/mountinfo");
  return {std::istreambuf_iterator<char>(file), {}};
}

class Oracle : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "mounting EROFS needs root";
    descriptors_ = OpenDescriptors();
    auto dir = TempDir::Create();
    ASSERT_TRUE(dir.ok()) << dir.status().ToString();
    dir_.emplace(std::move(*dir));
  }
  void TearDown() override {
    if (!dir_) return;
    // Others may mount meanwhile; of ours nothing may be left.
    EXPECT_EQ(MountTable().find(dir_->path()), std::string::npos) << "a mount leaked";
    EXPECT_TRUE(dir_->Remove().ok());
    dir_.reset();
    EXPECT_EQ(OpenDescriptors(), descriptors_) << "a descriptor leaked";
  }

  std::string metadata_path() const { return dir_->path() + "/metadata"; }
  std::string data_path() const { return dir_->path() + "/data"; }

  static void Save(const std::string& path, const std::string& bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << bytes;
    ASSERT_TRUE(file.good()) << path;
  }

  // Writes and validates the image; content comes from `device`.
  void WriteImage(const Tree& tree, const std::string& device) {
    auto image = WriteMetadata(tree, {.data_device_bytes = device.size()});
    ASSERT_TRUE(image.ok()) << image.status().ToString();
    auto summary = Validate(Bytes(*image), {.data_device_bytes = device.size()});
    ASSERT_TRUE(summary.ok()) << summary.status().ToString();
    // A new file each time: the kernel may still hold pages of a mount of the old one.
    unlink(metadata_path().c_str());
    Save(metadata_path(), *image);
    if (!device.empty()) Save(data_path(), device);
  }

  void ExpectKernelReads(const Tree& tree, const std::string& device) {
    auto mount = MountErofs(metadata_path(), device.empty() ? "" : data_path());
    ASSERT_TRUE(mount.ok()) << mount.status().ToString();
    EXPECT_EQ(CompareDirectory(tree, mount->get(), device, {}), "");
  }

  std::optional<TempDir> dir_;
  int descriptors_ = 0;
};

void Put(Tree& tree, const std::string& path, Node node) {
  const Status status = tree.Put(path, std::move(node));
  ASSERT_TRUE(status.ok()) << status.ToString();
}
Node WithContent(uint64_t size, std::vector<Extent> extents) {
  Node node;
  node.size = size;
  node.extents = std::move(extents);
  return node;
}

TEST_F(Oracle, KernelReadsRandomTrees) {
  RandomTreeOptions options;
  const std::string device = RandomBytes(options.device_blocks * kBlockSize, 1);
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    options.operations = static_cast<int>(seed * 13 % 500);
    const Tree tree = RandomTree(seed, options);
    WriteImage(tree, device);
    ExpectKernelReads(tree, device);
    if (HasFailure()) break;
  }
}

TEST_F(Oracle, KernelReadsTheAwkwardCorners) {
  Tree tree;
  const std::string device = RandomBytes(201 * kBlockSize, 2);
  const uint64_t k = kBlockSize;
  Put(tree, "empty", Node{});
  Put(tree, "end-of-device", WithContent(k + 17, {{0, k + 17, 199 * k}}));
  Put(tree, "sparse", WithContent(50 * k + 3, {{8 * k, 4 * k, 16 * k}, {32 * k, k, 0}}));
  Put(tree, "hole", WithContent(123456, {}));
  Put(tree, "large",
      WithContent((uint64_t{3} << 30) + 5,
                  {{uint64_t{1} << 30, 16 * k, 7 * k}, {uint64_t{3} << 30, 5, 9 * k}}));
  Put(tree, "terabytes", WithContent((uint64_t{5} << 40) + 1, {}));
  for (int i = 0; i < 20; ++i) {
    Put(tree, "shuffled" + std::to_string(i),
        WithContent(20 * k, {{0, 10 * k, (i + 50) * k}, {10 * k, 10 * k, (i + 3) * k}}));
  }
  for (const char* when : {"-1", "-9223372036", "4294967296", "17179869184", "253402300799"}) {
    Put(tree, std::string("time") + when,
        Node{.mtime_seconds = std::stoll(when), .mtime_nanos = 999'999'999});
  }
  Put(tree, "owner", Node{.mode = 07777, .uid = 4'000'000'000u, .gid = 70'000});
  for (size_t size :
       {size_t{1}, size_t{59}, size_t{3967}, size_t{4000}, size_t{4032}, size_t{4095}}) {
    Node link{.type = FileType::kSymlink, .mode = 0777};
    link.symlink_target = std::string(size, 't');
    Put(tree, "link" + std::to_string(size), link);
    link.xattrs["trusted.on-a-link"] = "v";
    Put(tree, "link-with-xattr" + std::to_string(size), link);
  }
  Put(tree, "names/" + std::string(255, 'n'), Node{});
  Put(tree, "names/" + std::string(254, 'n') + "\xff", Node{});
  for (const char* name :
       {"!before-dot", "-", ".-", "..", ".a", "...", "\x01", "\xff\xfe", "a\nb"}) {
    if (std::string(name) != "..") Put(tree, std::string("names/") + name, Node{});
  }
  Node attributes;
  attributes.xattrs = {
      {"user.empty", ""},
      {"user.binary", std::string("\0\xff\n", 3)},
      {"user." + std::string(250, 'n'), "long name"},
      {"user.large", std::string(65535, 'v')},
      {"trusted.t", "1"},
      {"security.custom", "2"},
      {"security.capability",
       std::string("\x01\x00\x00\x02\x00\x20\x00\x00\0\0\0\0\0\0\0\0\0\0\0\0", 20)},
      // version 2; user_obj rwx, user 1000 rwx, group_obj r-x, mask rwx, other ---
      {"system.posix_acl_access", std::string("\x02\0\0\0"
                                              "\x01\0\x07\0\xff\xff\xff\xff"
                                              "\x02\0\x07\0\xe8\x03\0\0"
                                              "\x04\0\x05\0\xff\xff\xff\xff"
                                              "\x10\0\x07\0\xff\xff\xff\xff"
                                              "\x20\0\0\0\xff\xff\xff\xff",
                                              44)}};
  Put(tree, "attributes", attributes);
  Node directory{.type = FileType::kDirectory, .mode = 0755};
  directory.xattrs = {{"user.large", std::string(9000, 'd')}};
  Put(tree, "directory", directory);
  for (int i = 0; i < 100; ++i) Put(tree, "directory/" + std::to_string(i), Node{});
  Put(tree, "devices/char",
      Node{.type = FileType::kCharDevice, .device_major = 4095, .device_minor = 1048575});
  Put(tree, "devices/block",
      Node{.type = FileType::kBlockDevice, .device_major = 8, .device_minor = 300});
  Put(tree, "devices/fifo", Node{.type = FileType::kFifo});
  Put(tree, "devices/socket", Node{.type = FileType::kSocket});
  ASSERT_TRUE(tree.Whiteout("gone").ok());
  ASSERT_TRUE(tree.Opaque("opaque").ok());
  Put(tree, "linked/original", WithContent(k, {{0, k, 0}}));
  for (int i = 0; i < 299; ++i) {
    ASSERT_TRUE(
        tree.Link("linked" + std::to_string(i % 7) + "/" + std::to_string(i), "linked/original")
            .ok());
  }
  ASSERT_EQ(tree.LinkCount("linked/original"), 300u);
  WriteImage(tree, device);
  ExpectKernelReads(tree, device);
}

TEST_F(Oracle, KernelReadsSeventyThousandHardLinks) {
  Tree tree;
  Put(tree, "f", Node{});
  for (int i = 0; i < 70'000; ++i) {
    ASSERT_TRUE(tree.Link("d" + std::to_string(i % 10) + "/" + std::to_string(i), "f").ok());
  }
  WriteImage(tree, "");
  ExpectKernelReads(tree, "");
}

TEST_F(Oracle, KernelReadsAHundredThousandNames) {
  Tree tree;
  for (int i = 0; i < 100'000; ++i) {
    Put(tree, "big/" + std::to_string(i * 7919 % 1'000'003), Node{.mtime_seconds = i % 3});
  }
  WriteImage(tree, "");
  ExpectKernelReads(tree, "");
}

TEST_F(Oracle, KernelReadsDeepPaths) {
  Tree tree;
  std::string path;
  for (int i = 0; i < 300; ++i) path += std::string(200, static_cast<char>('a' + i % 26)) + "/";
  ASSERT_GT(path.size(), 4096u);
  const std::string device = RandomBytes(3 * kBlockSize, 3);
  Put(tree, path + "file", WithContent(9000, {{0, 9000, 0}}));
  WriteImage(tree, device);
  ExpectKernelReads(tree, device);
}

// Whatever the validator lets pass, the kernel must read, and read as we do.
TEST_F(Oracle, KernelAgreesOnDamagedImagesThatPass) {
  RandomTreeOptions options;
  options.operations = 60;
  const std::string device = RandomBytes(options.device_blocks * kBlockSize, 4);
  std::mt19937 random(5);
  int passed = 0;
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    auto image = WriteMetadata(RandomTree(seed, options), {.data_device_bytes = device.size()});
    ASSERT_TRUE(image.ok());
    Save(data_path(), device);
    for (int flip = 0; flip < 200; ++flip) {
      std::string damaged = *image;
      const size_t at = kBlockSize + random() % (damaged.size() - kBlockSize);
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
      if (!Validate(Bytes(damaged), {.data_device_bytes = device.size()}).ok()) continue;
      SCOPED_TRACE("seed " + std::to_string(seed) + " byte " + std::to_string(at));
      ++passed;
      auto tree = ReadTree(Bytes(damaged));
      ASSERT_TRUE(tree.ok()) << tree.status().ToString();
      unlink(metadata_path().c_str());
      Save(metadata_path(), damaged);
      ExpectKernelReads(*tree, device);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(passed, 100);
}

// An overlay of two of our layers: markers act on the lower layer, and only as far as they say.
TEST_F(Oracle, OverlayObeysTheMarkers) {
  Tree lower, upper;
  for (const char* path : {"gone/f", "kept/f", "kept/g", "opaque/f", "replaced/f", "whole/f"}) {
    Put(lower, path, Node{});
  }
  ASSERT_TRUE(upper.Whiteout("gone").ok());
  ASSERT_TRUE(upper.Whiteout("kept/g").ok());
  Put(upper, "kept/h", Node{});
  Put(upper, "opaque/new", Node{});
  ASSERT_TRUE(upper.Opaque("opaque").ok());
  Put(upper, "replaced", Node{});
  ASSERT_TRUE(upper.Whiteout("whole").ok());
  Put(upper, "whole/again", Node{});
  WriteImage(lower, "");
  auto lower_mount = MountErofs(metadata_path(), "");
  ASSERT_TRUE(lower_mount.ok()) << lower_mount.status().ToString();
  WriteImage(upper, "");
  auto upper_mount = MountErofs(metadata_path(), "");
  ASSERT_TRUE(upper_mount.ok()) << upper_mount.status().ToString();
  auto overlay = MountOverlay({upper_mount->get(), lower_mount->get()});
  if (!overlay.ok() && overlay.status().error_number() == EINVAL) {
    GTEST_SKIP() << "overlay layers by descriptor need Linux 6.13: " << overlay.status().ToString();
  }
  ASSERT_TRUE(overlay.ok()) << overlay.status().ToString();
  for (const char* path : {"kept/f", "kept/h", "opaque/new", "replaced", "whole/again"}) {
    EXPECT_EQ(faccessat(overlay->get(), path, F_OK, AT_SYMLINK_NOFOLLOW), 0) << path;
  }
  for (const char* path : {"gone", "kept/g", "opaque/f", "replaced/f", "whole/f"}) {
    EXPECT_NE(faccessat(overlay->get(), path, F_OK, AT_SYMLINK_NOFOLLOW), 0) << path;
  }
}

class Fsck : public Oracle {
 protected:
  void ExpectClean(const std::string& extract_to) {
    std::vector<std::string> argv = {"fsck.erofs"};
    if (access(data_path().c_str(), F_OK) == 0) argv.push_back("--device=" + data_path());
    if (!extract_to.empty()) argv.push_back("--extract=" + extract_to);
    argv.push_back(metadata_path());
    auto output = RunCommand(argv);
    if (!output.ok() && output.status().code() == Code::kNotFound) {
      GTEST_SKIP() << "erofs-utils is not installed";
    }
    ASSERT_TRUE(output.ok()) << output.status().ToString();
    EXPECT_EQ(output->exit_code, 0) << output->out;
  }
};

TEST_F(Fsck, FindsNoFaultInRandomTrees) {
  RandomTreeOptions options;
  const std::string device = RandomBytes(options.device_blocks * kBlockSize, 6);
  for (uint32_t seed = 100; seed < 130; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    WriteImage(RandomTree(seed, options), device);
    ExpectClean("");
    if (HasFailure() || IsSkipped()) break;
  }
}

// erofs-utils 1.5 extracts no extended attributes, copies instead of hard links, loses set-id bits
// (chown after chmod) and leaves holes out (a file's later data lands at their place), so those are
// left to the kernel oracle.
TEST_F(Fsck, ExtractsWhatWePut) {
  RandomTreeOptions options;
  options.holes = false;
  options.wide_times = false;  // what the host's file system under the extracted tree can keep
  const std::string device = RandomBytes(options.device_blocks * kBlockSize, 7);
  for (uint32_t seed = 200; seed < 220; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Tree tree = RandomTree(seed, options);
    WriteImage(tree, device);
    const std::string out = dir_->path() + "/out" + std::to_string(seed);
    ASSERT_EQ(mkdir(out.c_str(), 0700), 0);
    ExpectClean(out);
    if (HasFailure() || IsSkipped()) break;
    UniqueFd fd(open(out.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(fd.valid());
    EXPECT_EQ(CompareDirectory(tree, fd.get(), device,
                               {.xattrs = false,
                                .hard_links = false,
                                .symlink_modes = false,
                                .set_id_bits = false,
                                .directory_links = false,
                                .holes = false}),
              "");
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace esker::erofs
