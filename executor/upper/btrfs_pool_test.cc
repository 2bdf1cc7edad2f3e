// The pool on its loop device: killed openers, repair, growth, and a host disk that is full.

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "base/failpoint.h"
#include "testing/btrfs_fixture.h"

namespace esker {
namespace {

class BtrfsPoolTest : public BtrfsStoreTest {
 protected:
  // In a child that does not clean up after itself, like a server that is killed.
  template <typename F>
  int InDoomedChild(F body) {
    pid_t pid = fork();
    if (pid == 0) {
      body();
      raise(SIGKILL);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return status;
  }
};

TEST_F(BtrfsPoolTest, SurvivesTheDeathOfTheOpener) {
  ASSERT_TRUE(store_->Close().ok());
  store_.reset();
  int status = InDoomedChild([&] {
    Reopen();
    if (!store_->Create("a", 64 * kMiB).ok()) _exit(1);
    if (!Write(Volume("a") + "/upper/f", "kept").ok()) _exit(1);
  });
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(CountMounts(), mounts_before_ + 1);
  Reopen();
  EXPECT_EQ(CountMounts(), mounts_before_ + 1);
  EXPECT_EQ(CountLoops(home_), 1u);
  EXPECT_EQ(*store_->List(), Names{"a"});
  EXPECT_EQ(Read(Volume("a") + "/upper/f"), "kept");
  EXPECT_EQ(store_->GetUsage("a")->limit, 64 * kMiB);
}

TEST_F(BtrfsPoolTest, HalfMadeVolumesAreRemoved) {
  store_.reset();
  int status = InDoomedChild([&] {
    Reopen();
    if (!ArmFailPoints("upper.publish=kill").ok()) _exit(1);
    (void)store_->Create("a", 64 * kMiB);
    _exit(1);
  });
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(*ListDirectory(home_ + "/pool"), Names{".new-a"});
  Reopen();
  EXPECT_EQ(*ListDirectory(home_ + "/pool"), Names{});
}

TEST_F(BtrfsPoolTest, FailedCreateLeavesNothing) {
  ASSERT_TRUE(ArmFailPoints("upper.publish=error:28").ok());
  Status status = store_->Create("a", kMiB).status();
  ASSERT_TRUE(ArmFailPoints("").ok());
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(*ListDirectory(home_ + "/pool"), Names{});
}

TEST_F(BtrfsPoolTest, LostMountIsRepairedOnTheSameDevice) {
  auto volume = store_->Create("a", 0);
  ASSERT_TRUE(volume.ok());
  ASSERT_TRUE(Write(Volume("a") + "/upper/f", "kept").ok());
  store_.reset();
  // The descriptor keeps the file system alive, as a sandbox does.
  ASSERT_EQ(umount2((home_ + "/pool").c_str(), 0), 0);
  ASSERT_EQ(CountLoops(home_), 1u);
  Reopen();
  EXPECT_EQ(CountLoops(home_), 1u);
  EXPECT_EQ(Read(Volume("a") + "/upper/f"), "kept");
}

TEST_F(BtrfsPoolTest, CloseLeavesNoMountAndNoDeviceAndKeepsVolumes) {
  ASSERT_TRUE(store_->Create("a", 64 * kMiB).ok());
  ASSERT_TRUE(Write(Volume("a") + "/upper/f", "kept").ok());
  ASSERT_TRUE(store_->Close().ok());
  EXPECT_EQ(CountMounts(), mounts_before_);
  EXPECT_EQ(CountLoops(home_), 0u);
  EXPECT_FALSE(PathExists(home_ + "/pool.boot"));
  EXPECT_EQ(store_->Create("b", 0).status().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(store_->Close().ok());
  Reopen();
  EXPECT_EQ(Read(Volume("a") + "/upper/f"), "kept");
  EXPECT_EQ(store_->GetUsage("a")->limit, 64 * kMiB);
}

TEST_F(BtrfsPoolTest, CloseWhileAVolumeIsUsedSaysSoAndCanBeRepeated) {
  auto volume = store_->Create("a", 0);
  ASSERT_TRUE(volume.ok());
  EXPECT_EQ(store_->Close().code(), Code::kFailedPrecondition);
  volume->reset();
  Status again = store_->Close();
  EXPECT_TRUE(again.ok()) << again.ToString();
}

TEST_F(BtrfsPoolTest, ForeignMountInTheWayIsRefused) {
  ASSERT_TRUE(store_->Close().ok());
  store_.reset();
  std::string at = home_ + "/pool";
  ASSERT_EQ(mount("tmpfs", at.c_str(), "tmpfs", 0, nullptr), 0);
  Status status = UpperStore::Open({.directory = home_, .pool_bytes = kPoolBytes}).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.message().find(at), std::string::npos) << status.message();
  EXPECT_EQ(UpperStore::Destroy(home_).code(), Code::kFailedPrecondition);
  ASSERT_EQ(umount2(at.c_str(), 0), 0);
}

TEST_F(BtrfsPoolTest, PoolOfAnInterruptedBootIsMadeAnew) {
  ASSERT_TRUE(store_->Create("a", 0).ok());
  ASSERT_TRUE(store_->Close().ok());
  ASSERT_TRUE(Write(home_ + "/pool.img", "").ok());
  ASSERT_TRUE(Write(home_ + "/pool.boot", "another boot").ok());
  Reopen();
  EXPECT_EQ(*store_->List(), Names{});
  EXPECT_TRUE(store_->Create("b", kMiB).ok());
}

TEST_F(BtrfsPoolTest, GrowsWhileMounted) {
  struct statvfs before = {}, after = {};
  ASSERT_EQ(statvfs((home_ + "/pool").c_str(), &before), 0);
  Reopen(2 * kPoolBytes);
  ASSERT_EQ(statvfs((home_ + "/pool").c_str(), &after), 0);
  EXPECT_EQ(after.f_blocks * after.f_frsize, 2 * kPoolBytes);
  EXPECT_EQ(before.f_blocks * before.f_frsize, kPoolBytes);
  // A smaller wish does not shrink it.
  Reopen(kPoolBytes);
  ASSERT_EQ(statvfs((home_ + "/pool").c_str(), &after), 0);
  EXPECT_EQ(after.f_blocks * after.f_frsize, 2 * kPoolBytes);
}

// The store on a host file system of its own, of 288 MiB.
class SmallHostTest : public BtrfsStoreTest {
 protected:
  void SetUp() override {
    BtrfsStoreTest::SetUp();
    if (!store_) return;
    store_.reset();
    ASSERT_TRUE(UpperStore::Destroy(home_).ok());
    ASSERT_TRUE(MakeDirectories(home_).ok());
    ASSERT_EQ(mount("tmpfs", home_.c_str(), "tmpfs", 0, "size=288m"), 0);
  }
  void TearDown() override {
    if (store_) {
      Status closed = store_->Close();
      EXPECT_TRUE(closed.ok()) << closed.ToString();
      store_.reset();
    }
    if (temp_) {
      EXPECT_EQ(umount2(home_.c_str(), 0), 0) << strerror(errno);
    }
    BtrfsStoreTest::TearDown();
  }
};

TEST_F(SmallHostTest, RefusesNewVolumesBeforeItIsFull) {
  {
    Reopen();
    ASSERT_TRUE(store_->Create("a", 0).ok());
    ASSERT_EQ(Fill(home_ + "/filler", 282 * kMiB), "");
    Status status = store_->Create("b", 0).status();
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.ToString();
    EXPECT_EQ(status.error_number(), ENOSPC);
    EXPECT_NE(status.message().find(home_), std::string::npos);
    EXPECT_LT(store_->Space()->available, 16 * kMiB);
    ASSERT_TRUE(store_->OpenVolume("a").ok());
    ASSERT_EQ(unlink((home_ + "/filler").c_str()), 0);
    EXPECT_TRUE(store_->Create("b", 0).ok());
  }
}

TEST_F(SmallHostTest, FilledByASparsePoolIsDataLossUntilReopened) {
  Reopen();
  ASSERT_TRUE(store_->Create("a", 0).ok());
  (void)Fill(Volume("a") + "/upper/f", 400 * kMiB);  // may succeed: it is in the page cache
  sync();
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  Status status;
  do {  // read-only comes with the first commit that fails
    sync();
    status = store_->Create("b", 0).status();
  } while (status.code() == Code::kResourceExhausted &&
           std::chrono::steady_clock::now() < deadline);
  EXPECT_EQ(status.code(), Code::kDataLoss) << status.ToString();
  EXPECT_EQ(store_->Delete("a").code(), Code::kDataLoss);
  ASSERT_TRUE(store_->Close().ok());
  Reopen();
  // The disk is as full as it was, until its operator does something.
  EXPECT_EQ(store_->Create("b", 0).status().code(), Code::kResourceExhausted);
  ASSERT_EQ(mount(nullptr, home_.c_str(), nullptr, MS_REMOUNT, "size=512m"), 0);
  status = store_->Create("b", 0).status();
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST_F(SmallHostTest, PreallocatedPoolIsRefusedOrSafe) {
  auto too_large =
      UpperStore::Open({.directory = home_, .pool_bytes = kPoolBytes, .preallocate = true});
  EXPECT_EQ(too_large.status().code(), Code::kResourceExhausted) << too_large.status().ToString();

  auto store =
      UpperStore::Open({.directory = home_, .pool_bytes = 256 * kMiB, .preallocate = true});
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  store_ = std::move(store).value();
  EXPECT_NE(Fill(home_ + "/filler", 288 * kMiB), "");  // the host is full now
  ASSERT_TRUE(store_->Create("a", 48 * kMiB).ok());
  ASSERT_EQ(Fill(Volume("a") + "/upper/f", 32 * kMiB), "");
  auto file = OpenFile(Volume("a") + "/upper/f", O_RDONLY);
  EXPECT_EQ(fsync(file->get()), 0) << strerror(errno);
}

}  // namespace
}  // namespace esker
