// Every field of true images bent in turn: what the validator lets pass, the kernel must mount and
// read, in full, as ReadTree does, without a word in its log.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>

#include "base/io.h"
#include "base/temp_dir.h"
#include "testing/compare.h"
#include "testing/field_map.h"
#include "testing/image_editor.h"
#include "testing/kernel_mount.h"
#include "testing/random_tree.h"

namespace esker::erofs {
namespace {

// New records of the kernel's log.
class KernelLog {
 public:
  KernelLog() : fd_(open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC)) { Skip(); }
  bool valid() const { return fd_.valid(); }
  void Skip() { lseek(fd_.get(), 0, SEEK_END); }
  // What EROFS has said since the last call, but for its greeting.
  std::string ErofsWords() {
    std::string words;
    char record[8192];
    for (;;) {
      const ssize_t n = read(fd_.get(), record, sizeof(record));
      if (n < 0 && errno == EPIPE) continue;  // overwritten before we came
      if (n <= 0) return words;
      const std::string_view text(record, static_cast<size_t>(n));
      if (text.find("erofs") != text.npos && text.find("mounted with root inode") == text.npos) {
        words += text;
      }
    }
  }

 private:
  UniqueFd fd_;
};

// A tree with the shape of a real one: this machine's /etc, its content taken from the device.
Tree ShapeOfEtc(uint64_t device_blocks) {
  namespace fs = std::filesystem;
  Tree tree;
  uint64_t next = 0;
  const auto options = fs::directory_options::skip_permission_denied;
  for (const auto& entry : fs::recursive_directory_iterator("/etc", options)) {
    struct stat st = {};
    if (lstat(entry.path().c_str(), &st) != 0) continue;
    Node node;
    node.mode = static_cast<uint16_t>(st.st_mode & 07777);
    node.uid = st.st_uid;
    node.gid = st.st_gid;
    node.mtime_seconds = st.st_mtim.tv_sec;
    node.mtime_nanos = static_cast<uint32_t>(st.st_mtim.tv_nsec);
    if (S_ISDIR(st.st_mode)) {
      node.type = FileType::kDirectory;
    } else if (S_ISLNK(st.st_mode)) {
      node.type = FileType::kSymlink;
      node.symlink_target = fs::read_symlink(entry.path()).string();
    } else if (S_ISREG(st.st_mode)) {
      const uint64_t blocks = std::min(BlocksOf(static_cast<uint64_t>(st.st_size)), device_blocks);
      node.size = std::min<uint64_t>(static_cast<uint64_t>(st.st_size), blocks * kBlockSize);
      if (next + blocks > device_blocks) next = 0;
      if (node.size > 0) node.extents = {{0, node.size, next * kBlockSize}};
      next += blocks;
    } else {
      continue;
    }
    EXPECT_TRUE(tree.Put(entry.path().string(), std::move(node)).ok()) << entry.path();
  }
  return tree;
}

constexpr size_t kMaxFields = 4000;

class BentImages : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "mounting EROFS needs root";
    auto dir = TempDir::Create();
    ASSERT_TRUE(dir.ok()) << dir.status().ToString();
    dir_.emplace(std::move(*dir));
    device_.resize(kSampleDeviceBlocks * kBlockSize);
    for (char& byte : device_) byte = static_cast<char>(random_());
    ASSERT_TRUE(Save(dir_->path() + "/data", device_).ok());
    const char* mounts = std::getenv("ESKER_BENT_MOUNTS");  // more than CI has time for
    if (mounts != nullptr) max_mounts_ = std::atoi(mounts);
  }

  static Status Save(const std::string& path, const std::string& bytes) {
    unlink(path.c_str());  // the kernel may hold pages of the old one
    ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_WRONLY | O_CREAT | O_EXCL, 0600));
    return WriteFull(fd.get(), bytes.data(), bytes.size());
  }

  // Empty if the kernel reads the image as ReadTree does, silently.
  std::string AskKernel(const std::string& image) {
    auto tree = ReadTree(Bytes(image));
    if (!tree.ok()) return "accepted, but: " + tree.status().ToString();
    if (Status saved = Save(dir_->path() + "/metadata", image); !saved.ok())
      return saved.ToString();
    log_.Skip();
    std::string why;
    {
      auto mount =
          MountErofs(dir_->path() + "/metadata", tree_has_device_ ? dir_->path() + "/data" : "");
      if (!mount.ok()) return mount.status().ToString();
      why = CompareDirectory(*tree, mount->get(), device_, {});
    }
    const std::string words = log_.ErofsWords();
    return words.empty() ? why : why + " kernel: " + words;
  }

  // The values that a field may be bent to.
  std::vector<uint64_t> ValuesFor(uint64_t old, uint32_t bytes) {
    const uint64_t mask = bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * bytes)) - 1;
    std::vector<uint64_t> values = {0,
                                    1,
                                    mask,
                                    mask >> 1,
                                    old + 1,
                                    old - 1,
                                    old ^ (mask ^ mask >> 1),
                                    old ^ uint64_t{1} << (random_() % (8 * bytes)),
                                    (uint64_t{random_()} << 32 | random_())};
    for (uint64_t& value : values) value &= mask;
    std::erase(values, old);
    return values;
  }

  // Bends every field; of what passes, up to max_mounts_ images go to the kernel.
  void BendAll(const std::string& name, const std::string& image) {
    ASSERT_EQ(AskKernel(image), "") << name;
    std::vector<std::pair<std::string, std::string>> accepted;  // what, image
    uint64_t bent = 0, passed = 0;
    std::vector<ImageField> fields = FieldsOf(image);
    if (fields.size() > kMaxFields) {
      std::shuffle(fields.begin(), fields.end(), random_);
      fields.resize(kMaxFields);
    }
    for (const ImageField& field : fields) {
      uint64_t old = 0;
      std::memcpy(&old, image.data() + field.offset, field.bytes);
      for (const uint64_t value : ValuesFor(old, field.bytes)) {
        ImageEditor editor(image);
        std::memcpy(editor.mutable_bytes().data() + field.offset, &value, field.bytes);
        editor.FixChecksum();
        ++bent;
        if (!Validate(Bytes(editor.bytes()), kSampleLimits).ok()) continue;
        // Every accepted one has the same chance to be among those the kernel gets.
        const std::string what = field.what + " = " + std::to_string(value);
        if (accepted.size() < static_cast<size_t>(max_mounts_)) {
          accepted.emplace_back(what, editor.bytes());
        } else if (const uint64_t at = random_() % (passed + 1); at < accepted.size()) {
          accepted[at] = {what, editor.bytes()};
        }
        ++passed;
      }
    }
    for (const auto& [what, bytes] : accepted) {
      std::string why = AskKernel(bytes);
      // Others may mount at the same time, and their words stand in the same log.
      if (!why.empty()) why = AskKernel(bytes);
      ASSERT_EQ(why, "") << name << ": " << what;
    }
    EXPECT_GT(accepted.size(), 20u);
    RecordProperty(name, std::to_string(bent) + " bent, " + std::to_string(passed) + " accepted");
    std::printf("%s: %lu bent, %lu accepted, %zu read by the kernel\n", name.c_str(), bent, passed,
                accepted.size());
  }

  std::string Write(const Tree& tree) {
    auto image = WriteMetadata(tree, {.data_device_bytes = device_.size()});
    EXPECT_TRUE(image.ok()) << image.status().ToString();
    return image.ok() ? *image : "";
  }

  std::mt19937 random_{20};
  std::optional<TempDir> dir_;
  std::string device_;
  bool tree_has_device_ = true;
  int max_mounts_ = 150;
  KernelLog log_;
};

TEST_F(BentImages, OfEveryKindOfNode) {
  if (!log_.valid()) GTEST_SKIP() << "/dev/kmsg cannot be read";
  BendAll("sample", SampleImage().bytes());
}

TEST_F(BentImages, OfRandomTrees) {
  RandomTreeOptions options;
  options.device_blocks = kSampleDeviceBlocks;
  for (uint32_t seed = 1; seed <= 3 && !HasFatalFailure(); ++seed) {
    options.operations = 20 * static_cast<int>(seed);
    BendAll("random" + std::to_string(seed), Write(RandomTree(seed, options)));
  }
}

TEST_F(BentImages, OfARealTree) { BendAll("etc", Write(ShapeOfEtc(kSampleDeviceBlocks))); }

}  // namespace
}  // namespace esker::erofs
