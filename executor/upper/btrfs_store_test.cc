// Volumes on the real thing, a pool on a loop device: limits, snapshots, clones, many workers.

#include <fcntl.h>
#include <linux/btrfs.h>
#include <sched.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "btrfs.h"
#include "testing/btrfs_fixture.h"

namespace esker {
namespace {

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
