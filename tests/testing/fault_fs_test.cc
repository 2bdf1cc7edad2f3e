// What the fault file system does wrong, and that it does everything else right.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/io.h"
#include "base/temp_dir.h"
#include "testing/fault_fs_mount.h"
#include "testing/fault_rules.h"

namespace esker::testing {
namespace {

TEST(FaultRulesTest, SayWhichLineIsWrong) {
  EXPECT_TRUE(ParseFaultRules("# nothing\n\nread packs/* delay=20 p=0.5\n").ok());
  for (const char* wrong : {"read", "read *", "reed * hang", "read * hung", "read * errno=EFOO",
                            "read * delay=-1", "read * delay=1x", "read * p=x hang"}) {
    EXPECT_EQ(ParseFaultRules(wrong).status().code(), Code::kInvalidArgument) << wrong;
  }
}

class FaultFsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0 || ::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      GTEST_SKIP() << "needs CAP_SYS_ADMIN for a mount namespace";
    }
    Result<TempDir> dir = TempDir::Create();
    ASSERT_TRUE(dir.ok());
    dir_ = std::make_unique<TempDir>(std::move(*dir));
    ASSERT_TRUE(MakeDirectories(Backing("")).ok());
    auto mount = FaultFsMount::Start(dir_->path() + "/backing", dir_->path() + "/mnt",
                                     dir_->path() + "/rules");
    ASSERT_TRUE(mount.ok()) << mount.status().ToString();
    mount_ = std::move(*mount);
  }
  void TearDown() override {
    if (mount_ != nullptr) {
      EXPECT_TRUE(mount_->Stop().ok());
    }
  }
  std::string Backing(const std::string& name) const { return dir_->path() + "/backing/" + name; }
  std::string Shown(const std::string& name) const { return dir_->path() + "/mnt/" + name; }
  int ReadError(const std::string& name) {
    Result<std::string> got = ReadFileToString(Shown(name));
    return got.ok() ? 0 : got.status().error_number();
  }
  void Rules(const std::string& rules) { ASSERT_TRUE(mount_->SetRules(rules).ok()); }

  std::unique_ptr<TempDir> dir_;
  std::unique_ptr<FaultFsMount> mount_;
};

TEST_F(FaultFsTest, ShowsADirectoryAndTakesChanges) {
  const std::string content(3'000'000, 'x');
  ASSERT_TRUE(ReplaceFileDurably(Shown("a"), content).ok());
  EXPECT_TRUE(*ReadFileToString(Backing("a")) == content);
  EXPECT_TRUE(*ReadFileToString(Shown("a")) == content);
  ASSERT_EQ(::link(Shown("a").c_str(), Shown("b").c_str()), 0);
  struct stat status {};
  ASSERT_EQ(::stat(Shown("a").c_str(), &status), 0);
  EXPECT_EQ(status.st_nlink, 2u);
  EXPECT_EQ(::link(Shown("a").c_str(), Shown("b").c_str()), -1);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_EQ(*ListDirectory(Shown("")), (std::vector<std::string>{"a", "b"}));
  ASSERT_EQ(::unlink(Shown("a").c_str()), 0);
  EXPECT_FALSE(PathExists(Backing("a")));
}

TEST_F(FaultFsTest, EachFaultHappensAndEndsWithItsRule) {
  const std::string content(10'000, 'x');
  ASSERT_TRUE(ReplaceFileDurably(Backing("f"), content).ok());
  Rules("read f errno=EIO");
  EXPECT_EQ(ReadError("f"), EIO);
  Rules("open f errno=ENOENT");
  EXPECT_EQ(ReadError("f"), ENOENT);
  Rules("read g errno=EIO");
  EXPECT_EQ(ReadError("f"), 0);
  Rules("read f flip");
  Result<std::string> got = ReadFileToString(Shown("f"));
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->size(), content.size());
  EXPECT_FALSE(*got == content);
  Rules("read f cut");
  EXPECT_EQ(ReadFileToString(Shown("f"))->size(), content.size() / 2);
  Rules("read f short");
  EXPECT_TRUE(*ReadFileToString(Shown("f")) == content);  // who asks again gets the rest
  Rules("modify * errno=EROFS");
  EXPECT_EQ(ReplaceFileDurably(Shown("h"), "x").error_number(), EROFS);
  Rules("write * errno=ENOSPC");
  EXPECT_EQ(ReplaceFileDurably(Shown("h"), "x").error_number(), ENOSPC);
  Rules("");
  EXPECT_EQ(ReadError("f"), 0);
  EXPECT_TRUE(ReplaceFileDurably(Shown("h"), "x").ok());
}

TEST_F(FaultFsTest, AnOperationHangsUntilTheRulesChangeAndHoldsUpNoOther) {
  ASSERT_TRUE(ReplaceFileDurably(Backing("f"), "x").ok());
  ASSERT_TRUE(ReplaceFileDurably(Backing("g"), "x").ok());
  Rules("read f hang");
  std::atomic<int> ended{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 40; ++i) {
    readers.emplace_back([&] {
      EXPECT_EQ(ReadError("f"), 0);
      ++ended;
    });
  }
  for (int i = 0; i < 20; ++i) EXPECT_EQ(ReadError("g"), 0);
  EXPECT_EQ(ended, 0);
  Rules("");
  for (std::thread& reader : readers) reader.join();
}

TEST_F(FaultFsTest, AddsTimeToReads) {
  ASSERT_TRUE(ReplaceFileDurably(Backing("f"), "x").ok());
  Rules("read * delay=50");
  const int64_t start = Clock::System().MonotonicNanos();
  EXPECT_EQ(ReadError("f"), 0);
  EXPECT_GE(Clock::System().MonotonicNanos() - start, 50'000'000);
}

TEST_F(FaultFsTest, NamesOfOthersAppearLateAndThoseMadeHereAtOnce) {
  Rules("names * delay=60000");
  ASSERT_TRUE(ReplaceFileDurably(Backing("theirs"), "x").ok());
  ASSERT_TRUE(ReplaceFileDurably(Shown("ours"), "x").ok());
  EXPECT_EQ(ReadError("ours"), 0);
  EXPECT_EQ(ReadError("theirs"), ENOENT);
  EXPECT_EQ(*ListDirectory(Shown("")), std::vector<std::string>{"ours"});
  Rules("names * delay=1");
  while (ReadError("theirs") != 0) std::this_thread::yield();
  // Once seen, it stays.
  Rules("names * delay=60000");
  EXPECT_EQ(ReadError("theirs"), 0);
}

}  // namespace
}  // namespace esker::testing
