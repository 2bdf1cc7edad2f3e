// A store that runs full in the middle of an import.
#include <sys/mount.h>
#include <unistd.h>

#include <random>

#include "testing/import_fixture.h"
#include "testing/tar_builder.h"

namespace esker {
namespace {

class FullStoreTest : public testing::ImportTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "a small file system needs root";
    ImportTest::SetUp();
    small_ = dir_->path() + "/small";
    ASSERT_TRUE(MakeDirectories(small_).ok());
    ASSERT_EQ(::mount("tmpfs", small_.c_str(), "tmpfs", 0, "size=4m"), 0);
    mounted_ = true;
    ESKER_ASSERT_OK(Store::Initialise(small_ + "/store"));
    store_ = std::move(*Store::Open(small_ + "/store"));
  }
  void TearDown() override {
    if (mounted_) {
      Result<std::vector<std::string>> left = ListDirectory(small_ + "/store/tmp");
      EXPECT_TRUE(left.ok() && left->empty()) << "temporary files are left";
      store_.reset();
      EXPECT_EQ(::umount(small_.c_str()), 0);
    }
    ImportTest::TearDown();
  }
  static std::string Noise(size_t size, uint32_t seed) {
    std::mt19937 random(seed);
    std::string out(size, '\0');
    for (char& c : out) c = static_cast<char>(random());
    return out;
  }
  std::string small_;
  bool mounted_ = false;
};

TEST_F(FullStoreTest, IsATypedErrorThatLeavesNothingAndPasses) {
  const std::string large = testing::TarBuilder().File("large", Noise(6 << 20, 1)).End();
  Status status = Refusal(large);
  ESKER_EXPECT_CODE(status, Code::kResourceExhausted);
  EXPECT_NE(status.message().find(small_), std::string::npos) << status.message();
  // All the space is back.
  const std::string fits = testing::TarBuilder().File("fits", Noise(3 << 20, 2)).End();
  Result<ImportedLayer> imported = Import(fits);
  EXPECT_TRUE(imported.ok()) << imported.status().ToString();
}

}  // namespace
}  // namespace esker
