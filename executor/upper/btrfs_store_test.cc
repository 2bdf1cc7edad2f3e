// The real thing: a pool on a loop device. Needs root, btrfs and loop devices.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/btrfs.h>
#include <sched.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/failpoint.h"
#include "base/io.h"
#include "base/temp_dir.h"
#include "executor/upper_store.h"
#include "pool.h"

namespace esker {
namespace {

using Names = std::vector<std::string>;
constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kPoolBytes = 512 * kMiB;

size_t CountLines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

size_t CountMounts() { return CountLines(*ReadFileToString("/proc/self/mountinfo")); }

size_t CountFds() { return ListDirectory("/proc/self/fd")->size(); }

// Loop devices whose backing file lies below `directory`.
size_t CountLoops(const std::string& directory) {
  size_t count = 0;
  const Names devices = ListDirectory("/sys/block").value();
  for (const std::string& name : devices) {
    auto backing = ReadFileToString("/sys/block/" + name + "/loop/backing_file");
    if (backing.ok() && backing->starts_with(directory + "/")) ++count;
  }
  return count;
}

class BtrfsStoreTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    support_ = CheckPoolSupport();
    if (!support_.ok()) return;
    // A mount table of our own, so that a failing test leaves nothing in the host's.
    ASSERT_EQ(unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
  }

  void SetUp() override {
    if (!support_.ok()) GTEST_SKIP() << support_.ToString();
    mounts_before_ = CountMounts();
    fds_before_ = CountFds();
    auto temp = TempDir::Create();
    ASSERT_TRUE(temp.ok());
    temp_ = std::make_unique<TempDir>(std::move(temp).value());
    home_ = temp_->path() + "/uppers";
    Reopen();
  }

  void TearDown() override {
    if (!temp_) return;
    store_.reset();
    Status destroyed = UpperStore::Destroy(home_);
    EXPECT_TRUE(destroyed.ok()) << destroyed.ToString();
    EXPECT_EQ(CountLoops(temp_->path()), 0u);
    EXPECT_TRUE(temp_->Remove().ok());
    EXPECT_EQ(CountMounts(), mounts_before_);
    EXPECT_EQ(CountFds(), fds_before_);
  }

  void Reopen(uint64_t bytes = kPoolBytes) {
    store_.reset();
    auto store = UpperStore::Open({.directory = home_, .pool_bytes = bytes});
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = std::move(store).value();
    ASSERT_TRUE(store_->enforces_limit());
  }

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

  std::string Volume(const std::string& id) const { return home_ + "/pool/" + id; }
  static Status Write(const std::string& path, std::string_view data) {
    auto fd = OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    return fd.ok() ? WriteFull(fd->get(), data.data(), data.size()) : fd.status();
  }
  static std::string Read(const std::string& path) {
    auto data = ReadFileToString(path);
    return data.ok() ? *data : data.status().ToString();
  }
  // An error as text, "" for none.
  static std::string Fill(const std::string& path, uint64_t bytes) {
    auto fd = OpenFile(path, O_WRONLY | O_CREAT, 0644);
    if (!fd.ok()) return fd.status().ToString();
    std::string block(kMiB, 'x');
    for (uint64_t done = 0; done < bytes; done += block.size()) {
      Status status = WriteFull(fd->get(), block.data(), block.size());
      if (!status.ok()) return strerror(status.error_number());
    }
    return "";
  }

  static inline Status support_;
  size_t mounts_before_ = 0, fds_before_ = 0;
  std::unique_ptr<TempDir> temp_;
  std::string home_;
  std::unique_ptr<UpperStore> store_;
};

// An overlay whose upper is the volume, mounted by descriptor as a keeper does it.
class Overlay {
 public:
  Overlay(const std::string& directory, int volume_fd) : at_(directory + "/merged") {
    std::string lower = directory + "/lower", volume = "/proc/self/fd/" + std::to_string(volume_fd);
    EXPECT_TRUE(MakeDirectories(lower).ok() && MakeDirectories(at_).ok());
    std::string options = "lowerdir=" + lower + ",upperdir=" + volume + "/upper,workdir=" + volume +
                          "/work,volatile,redirect_dir=nofollow,metacopy=off,index=off";
    EXPECT_EQ(mount("overlay", at_.c_str(), "overlay", 0, options.c_str()), 0) << strerror(errno);
  }
  ~Overlay() { EXPECT_EQ(umount2(at_.c_str(), 0), 0) << strerror(errno); }
  std::string Path(const std::string& name) const { return at_ + "/" + name; }

 private:
  std::string at_;
};

TEST_F(BtrfsStoreTest, FullSpeedWritersStopAtTheLimit) {
  constexpr uint64_t kLimit = 64 * kMiB;
  auto volume = store_->Create("a", kLimit);
  ASSERT_TRUE(volume.ok()) << volume.status().ToString();
  Overlay overlay(temp_->path(), volume->get());
  std::atomic<uint64_t> accepted = 0;
  std::atomic<int> error[2] = {0, 0};
  auto writer = [&](int number) {
    auto fd = OpenFile(overlay.Path("fill" + std::to_string(number)), O_WRONLY | O_CREAT, 0644);
    std::string block(128 << 10, 'x');
    while (accepted < 4 * kLimit) {
      ssize_t n = write(fd->get(), block.data(), block.size());
      if (n < 0) {
        error[number] = errno;
        return;
      }
      accepted += static_cast<uint64_t>(n);
    }
  };
  std::thread one(writer, 0), two(writer, 1);
  one.join();
  two.join();
  EXPECT_EQ(error[0], EDQUOT);
  EXPECT_EQ(error[1], EDQUOT);
  EXPECT_LE(accepted, kLimit);
  EXPECT_GT(accepted, kLimit - 2 * kMiB);
  sync();
  auto usage = store_->GetUsage("a");
  ASSERT_TRUE(usage.ok());
  EXPECT_EQ(usage->limit, kLimit);
  EXPECT_LE(usage->bytes_used, kLimit);
  EXPECT_GT(usage->bytes_used, kLimit - 2 * kMiB);

  // Another volume does not feel it, and the full one can free space by itself, or be given more.
  ASSERT_TRUE(store_->Create("b", kLimit).ok());
  EXPECT_EQ(Fill(Volume("b") + "/upper/f", 8 * kMiB), "");
  ASSERT_TRUE(store_->SetLimit("a", 2 * kLimit).ok());
  EXPECT_EQ(Fill(overlay.Path("more"), 8 * kMiB), "");
  ASSERT_TRUE(store_->SetLimit("a", kLimit).ok());
  EXPECT_EQ(unlink(overlay.Path("fill0").c_str()), 0) << strerror(errno);
}

TEST_F(BtrfsStoreTest, WriterOfTinyFilesStopsAtTheLimit) {
  constexpr uint64_t kLimit = 4 * kMiB;
  auto volume = store_->Create("a", kLimit);
  ASSERT_TRUE(volume.ok());
  Overlay overlay(temp_->path(), volume->get());
  int made = 0, error = 0;
  for (; made < 1'000'000; ++made) {
    int fd = open(overlay.Path("f" + std::to_string(made)).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC,
                  0644);
    if (fd < 0) {
      error = errno;
      break;
    }
    close(fd);
  }
  EXPECT_EQ(error, EDQUOT) << made;
  EXPECT_GT(made, 1000);
  sync();
  EXPECT_LE(store_->GetUsage("a")->bytes_used, kLimit);
}

TEST_F(BtrfsStoreTest, LimitZeroIsNoneAndALimitCanBeLifted) {
  ASSERT_TRUE(store_->Create("a", 0).ok());
  EXPECT_EQ(store_->GetUsage("a")->limit, 0u);
  EXPECT_EQ(Fill(Volume("a") + "/upper/f", 8 * kMiB), "");
  ASSERT_TRUE(store_->SetLimit("a", kMiB).ok());
  Status refused = Write(Volume("a") + "/upper/g", "more");
  EXPECT_EQ(refused.error_number(), EDQUOT) << refused.ToString();
  ASSERT_TRUE(store_->SetLimit("a", 5ull << 40).ok());
  EXPECT_EQ(store_->GetUsage("a")->limit, 5ull << 40);
  ASSERT_TRUE(store_->SetLimit("a", 0).ok());
  EXPECT_EQ(store_->GetUsage("a")->limit, 0u);
  EXPECT_EQ(Fill(Volume("a") + "/upper/h", 8 * kMiB), "");
}

TEST_F(BtrfsStoreTest, AFullVolumeCanBeSnapshottedClonedAndDeleted) {
  ASSERT_TRUE(store_->Create("a", 8 * kMiB).ok());
  ASSERT_EQ(Fill(Volume("a") + "/upper/f", 16 * kMiB), strerror(EDQUOT));
  ASSERT_TRUE(store_->SetLimit("a", kMiB).ok());
  Status snapshot = store_->Snapshot("a", "s").status();
  EXPECT_TRUE(snapshot.ok()) << snapshot.ToString();
  Status clone = store_->Clone("a", "c", 8 * kMiB).status();
  EXPECT_TRUE(clone.ok()) << clone.ToString();
  EXPECT_EQ(Fill(Volume("c") + "/upper/g", 4 * kMiB), "");
  for (const char* id : {"a", "s", "c"}) EXPECT_TRUE(store_->Delete(id).ok());
  EXPECT_EQ(*store_->List(), Names{});
}

TEST_F(BtrfsStoreTest, SnapshotKeepsTheMomentAndIsReadOnly) {
  ASSERT_TRUE(store_->Create("a", 64 * kMiB).ok());
  std::string file = Volume("a") + "/upper/f";
  ASSERT_TRUE(Write(file, "before").ok());
  auto snapshot = store_->Snapshot("a", "s");
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().ToString();
  ASSERT_TRUE(Write(file, "after").ok());
  EXPECT_EQ(Read(Volume("s") + "/upper/f"), "before");
  EXPECT_EQ(openat(snapshot->get(), "upper/f", O_WRONLY | O_CLOEXEC), -1);
  EXPECT_EQ(errno, EROFS);
  EXPECT_EQ(*store_->List(), (Names{"a", "s"}));
  EXPECT_EQ(store_->Snapshot("a", "s").status().code(), Code::kAlreadyExists);
  EXPECT_TRUE(store_->Delete("s").ok());
  EXPECT_TRUE(store_->Delete("s").ok());
  EXPECT_EQ(*store_->List(), Names{"a"});
  EXPECT_EQ(store_->Snapshot("missing", "s").status().code(), Code::kNotFound);
}

TEST_F(BtrfsStoreTest, CloneIsIsolatedHasEmptyWorkAndItsOwnLimit) {
  ASSERT_TRUE(store_->Create("a", 64 * kMiB).ok());
  ASSERT_EQ(Fill(Volume("a") + "/upper/big", 32 * kMiB), "");
  ASSERT_TRUE(Write(Volume("a") + "/upper/f", "old").ok());
  ASSERT_TRUE(MakeDirectories(Volume("a") + "/work/work/incompat/volatile").ok());
  auto clone = store_->Clone("a", "b", 40 * kMiB);
  ASSERT_TRUE(clone.ok()) << clone.status().ToString();
  EXPECT_EQ(*ListDirectory(Volume("b") + "/work"), Names{});
  Overlay overlay(temp_->path(), clone->get());
  ASSERT_TRUE(Write(overlay.Path("f"), "new").ok());
  EXPECT_EQ(Read(Volume("a") + "/upper/f"), "old");
  EXPECT_EQ(Read(Volume("b") + "/upper/f"), "new");
  EXPECT_EQ(Fill(overlay.Path("fill"), 64 * kMiB), strerror(EDQUOT));
  // The original goes; what the clone shares stays.
  ASSERT_TRUE(store_->Delete("a").ok());
  EXPECT_EQ(Read(overlay.Path("big")).size(), 32 * kMiB);
}

TEST_F(BtrfsStoreTest, CloneWithoutLimitInheritsNone) {
  ASSERT_TRUE(store_->Create("a", 4 * kMiB).ok());
  ASSERT_TRUE(store_->Clone("a", "b", 0).ok());
  EXPECT_EQ(store_->GetUsage("b")->limit, 0u);
  EXPECT_EQ(Fill(Volume("b") + "/upper/f", 16 * kMiB), "");
}

TEST_F(BtrfsStoreTest, AdoptTakesWhatIsThere) {
  ASSERT_TRUE(store_->Create("a", 64 * kMiB).ok());
  ASSERT_TRUE(Write(Volume("a") + "/upper/f", "kept").ok());
  EXPECT_EQ(store_->Create("a", kMiB).status().code(), Code::kAlreadyExists);
  ASSERT_TRUE(store_->Create("a", 32 * kMiB, /*adopt=*/true).ok());
  EXPECT_EQ(Read(Volume("a") + "/upper/f"), "kept");
  EXPECT_EQ(store_->GetUsage("a")->limit, 32 * kMiB);
}

TEST_F(BtrfsStoreTest, SurvivesTheDeathOfTheOpener) {
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

TEST_F(BtrfsStoreTest, HalfMadeVolumesAreRemoved) {
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

TEST_F(BtrfsStoreTest, FailedCreateLeavesNothing) {
  ASSERT_TRUE(ArmFailPoints("upper.publish=error:28").ok());
  Status status = store_->Create("a", kMiB).status();
  ASSERT_TRUE(ArmFailPoints("").ok());
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(*ListDirectory(home_ + "/pool"), Names{});
}

TEST_F(BtrfsStoreTest, LostMountIsRepairedOnTheSameDevice) {
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

TEST_F(BtrfsStoreTest, CloseLeavesNoMountAndNoDeviceAndKeepsVolumes) {
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

TEST_F(BtrfsStoreTest, CloseWhileAVolumeIsUsedSaysSoAndCanBeRepeated) {
  auto volume = store_->Create("a", 0);
  ASSERT_TRUE(volume.ok());
  EXPECT_EQ(store_->Close().code(), Code::kFailedPrecondition);
  volume->reset();
  Status again = store_->Close();
  EXPECT_TRUE(again.ok()) << again.ToString();
}

TEST_F(BtrfsStoreTest, ForeignMountInTheWayIsRefused) {
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

TEST_F(BtrfsStoreTest, PoolOfAnInterruptedBootIsMadeAnew) {
  ASSERT_TRUE(store_->Create("a", 0).ok());
  ASSERT_TRUE(store_->Close().ok());
  ASSERT_TRUE(Write(home_ + "/pool.img", "").ok());
  ASSERT_TRUE(Write(home_ + "/pool.boot", "another boot").ok());
  Reopen();
  EXPECT_EQ(*store_->List(), Names{});
  EXPECT_TRUE(store_->Create("b", kMiB).ok());
}

TEST_F(BtrfsStoreTest, GrowsWhileMounted) {
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

TEST_F(BtrfsStoreTest, ManyWorkersAtOnce) {
  std::atomic<int> failures = 0, created = 0;
  std::vector<std::thread> workers;
  for (int w = 0; w < 8; ++w) {
    workers.emplace_back([&, w] {
      for (int i = 0; i < 20; ++i) {
        std::string id = "v" + std::to_string(w) + "-" + std::to_string(i);
        // All workers also fight for the same names; one wins each.
        auto shared = store_->Create("shared" + std::to_string(i), kMiB);
        if (shared.ok()) ++created;
        if (!shared.ok() && shared.status().code() != Code::kAlreadyExists) ++failures;
        if (!store_->Create(id, kMiB).ok() || !store_->Clone(id, id + "c", 0).ok() ||
            !store_->Snapshot(id, id + "s").ok() || !store_->Delete(id).ok() ||
            !store_->Delete(id + "c").ok() || !store_->Delete(id + "s").ok()) {
          ++failures;
        }
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(created, 20);
  EXPECT_EQ(store_->List()->size(), 20u);
}

TEST_F(BtrfsStoreTest, QuotaGroupsOfClonedAndDeletedVolumesAreReaped) {
  ASSERT_TRUE(store_->Create("a", 64 * kMiB).ok());
  ASSERT_EQ(Fill(Volume("a") + "/upper/f", 4 * kMiB), "");
  ASSERT_TRUE(store_->Clone("a", "b", 0).ok());
  ASSERT_TRUE(store_->Delete("a").ok());
  ASSERT_TRUE(store_->Delete("b").ok());
  auto root = OpenFile(home_ + "/pool", O_RDONLY | O_DIRECTORY);
  std::string groups = "/sys/fs/btrfs/" + *btrfs::FilesystemUuid(root->get()) + "/qgroups";
  auto count = [&] {
    Names names = *ListDirectory(groups);
    return std::count_if(names.begin(), names.end(),
                         [](const std::string& name) { return name.starts_with("0_"); });
  };
  // The kernel's cleaner works behind commits; wait for it.
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(90);
  while (count() > 1 && std::chrono::steady_clock::now() < deadline) {
    ASSERT_EQ(syncfs(root->get()), 0);
    Reopen();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(count(), 1);  // the pool's own
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

// What a keeper does: it has another mount namespace, in which the pool is not, and another user
// namespace's ids.
TEST_F(BtrfsStoreTest, VolumeCanBeIdMappedInAnotherMountNamespace) {
  constexpr uid_t kBase = 0x10000000;
  auto volume = store_->Create("a", 64 * kMiB);
  ASSERT_TRUE(volume.ok());
  int ready[2], done[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(done, O_CLOEXEC), 0);
  // Exists only to have a user namespace. Not fork and unshare: a sanitizer's thread in the child
  // would refuse that.
  auto owner = static_cast<pid_t>(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
  ASSERT_GE(owner, 0) << strerror(errno);
  if (owner == 0) {
    if (write(ready[1], "x", 1) != 1) _exit(1);
    char c;
    close(done[1]);
    _exit(read(done[0], &c, 1) == 0 ? 0 : 1);
  }
  close(ready[1]);
  close(done[0]);
  char c;
  ASSERT_EQ(read(ready[0], &c, 1), 1);
  std::string proc = "/proc/" + std::to_string(owner);
  std::string map = "0 " + std::to_string(kBase) + " 65536\n";
  ASSERT_TRUE(WriteStringToFile(proc + "/uid_map", map).ok());
  ASSERT_TRUE(WriteStringToFile(proc + "/gid_map", map).ok());
  auto userns = OpenFile(proc + "/ns/user", O_RDONLY);
  ASSERT_TRUE(userns.ok());
  std::string pool = home_ + "/pool";
  pid_t keeper = fork();
  if (keeper == 0) {
    if (unshare(CLONE_NEWNS) != 0 || umount2(pool.c_str(), MNT_DETACH) != 0) _exit(1);
    mount_attr attr = {};
    attr.attr_set = MOUNT_ATTR_IDMAP;
    attr.userns_fd = static_cast<uint64_t>(userns->get());
    if (syscall(SYS_mount_setattr, volume->get(), "", AT_EMPTY_PATH, &attr, sizeof(attr)) != 0) {
      _exit(2);
    }
    setfsgid(kBase);
    setfsuid(kBase);
    int fd = openat(volume->get(), "upper/f", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    _exit(fd >= 0 && write(fd, "x", 1) == 1 ? 0 : 3);
  }
  int status = 0;
  waitpid(keeper, &status, 0);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
  struct stat st = {};
  ASSERT_EQ(stat((Volume("a") + "/upper/f").c_str(), &st), 0);
  EXPECT_EQ(st.st_uid, 0u);  // on disk owners stay zero-based
  EXPECT_EQ(st.st_gid, 0u);
  for (int fd : {ready[0], done[1]}) close(fd);
  waitpid(owner, &status, 0);
}

// Linux before 6.7 has only these; a pool made there keeps them.
TEST_F(BtrfsStoreTest, ClassicQuotasLimitToo) {
  auto root = OpenFile(home_ + "/pool", O_RDONLY | O_DIRECTORY);
  btrfs_ioctl_quota_ctl_args args = {};
  args.cmd = BTRFS_QUOTA_CTL_DISABLE;
  ASSERT_EQ(ioctl(root->get(), BTRFS_IOC_QUOTA_CTL, &args), 0);
  args.cmd = BTRFS_QUOTA_CTL_ENABLE;
  ASSERT_EQ(ioctl(root->get(), BTRFS_IOC_QUOTA_CTL, &args), 0);
  ASSERT_EQ(ioctl(root->get(), BTRFS_IOC_QUOTA_RESCAN_WAIT), 0);
  root->reset();
  Reopen();
  EXPECT_EQ(store_->kind(), "btrfs (classic quotas)");
  ASSERT_TRUE(store_->Create("a", 8 * kMiB).ok());
  EXPECT_EQ(Fill(Volume("a") + "/upper/f", 16 * kMiB), strerror(EDQUOT));
  EXPECT_TRUE(store_->Snapshot("a", "s").ok());
  Status cloned = store_->Clone("a", "c", 16 * kMiB).status();
  EXPECT_TRUE(cloned.ok()) << cloned.ToString();
  EXPECT_EQ(Fill(Volume("c") + "/upper/g", 16 * kMiB), strerror(EDQUOT));
  ASSERT_TRUE(store_->SetLimit("a", 0).ok());
  EXPECT_EQ(Fill(Volume("a") + "/upper/g", 16 * kMiB), "");
  for (const char* id : {"a", "s", "c"}) EXPECT_TRUE(store_->Delete(id).ok());
}

}  // namespace
}  // namespace esker
