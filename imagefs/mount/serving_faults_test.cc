// What "Reading lazily" of the behaviours promises, with a store and a cache that do wrong, under
// load, through real FUSE and EROFS mounts. README.md says which test stands for which line.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "../serve/node_cache.h"
#include "testing/fault_fs_mount.h"
#include "testing/serving_fixture.h"

namespace esker {
namespace {

using testing::FaultFsMount;
using testing::NowMs;
using testing::ServingTest;

uint64_t BlocksBelow(const std::string& directory) {
  uint64_t bytes = 0;
  std::error_code ignored;  // files come and go
  for (auto it = std::filesystem::recursive_directory_iterator(directory, ignored);
       it != std::filesystem::recursive_directory_iterator(); it.increment(ignored)) {
    struct stat status;
    if (::lstat(it->path().c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
      bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

class FaultyStoreTest : public ServingTest {
 protected:
  void SetUp() override {
    ServingTest::SetUp();
    if (!reason_.empty()) return;
    auto faults =
        FaultFsMount::Start(store_->path(), dir_->path() + "/faulty", dir_->path() + "/rules");
    ASSERT_TRUE(faults.ok()) << faults.status().ToString();
    faults_ = std::move(*faults);
  }
  void TearDown() override {
    if (faults_ != nullptr) LAYER_EXPECT_OK(faults_->SetRules(""));
    if (server_.valid()) {
      KillServer(SIGKILL);  // lets go of the store
      if (faults_ != nullptr) LAYER_EXPECT_OK(faults_->Stop());
      faults_.reset();
    }
    ServingTest::TearDown();
  }
  void StartOnFaultyStore(int retry_ms, const std::string& fail_points = "") {
    StartServer(ServerOptions{retry_ms, faults_->path(), fail_points});
  }
  void Rules(const std::string& rules) { LAYER_ASSERT_OK(faults_->SetRules(rules)); }
  // All that is kept has the right digest: what the disk holds, read by nobody's server.
  void ExpectNothingWrongCached() {
    KillServer(SIGKILL);
    {
      NodeCache cache(cache_.root, Clock::System());
      uint64_t checked = 0;
      LAYER_ASSERT_OK(cache.Verify(
          {},
          [&](const VerifiedBlob& blob) {
            EXPECT_EQ(blob.error, "");
            EXPECT_EQ(blob.chunks_dropped, 0u) << blob.id.ToHex();
            checked += blob.chunks_checked;
            return true;
          },
          [] { return false; }));
      EXPECT_GT(checked, 0u);
    }
    StartOnFaultyStore(1000);
  }
  // Readers all the while: the fault comes, `meanwhile` sees to what must hold then, it goes, and
  // after a while no read fails any more.
  void UnderLoad(int mount, const std::string& rules,
                 const std::function<void(Readers&)>& meanwhile) {
    Readers readers;
    StartReaders(readers, mount, 12);
    EXPECT_TRUE(Eventually([&] { return readers.reads > 30; }));
    Rules(rules);
    meanwhile(readers);
    Rules("");
    // Those that began under the fault may still fail.
    EXPECT_TRUE(Eventually(
        [&] {
          const uint64_t failed = readers.failed, reads = readers.reads;
          EXPECT_TRUE(Eventually([&] { return readers.reads > reads + 60; }));
          return readers.failed == failed;
        },
        60'000));
    readers.Join();
    EXPECT_EQ(readers.wrong, 0u);
  }

  std::unique_ptr<FaultFsMount> faults_;
};

TEST_F(FaultyStoreTest, SlowMeansSlowAndNothingElse) {
  ImageLayer layer = PublishLayer(1, 40, 800'000);
  StartOnFaultyStore(20'000);
  UniqueFd mount = MountServed(layer);
  ASSERT_TRUE(mount.valid());
  UnderLoad(mount.get(), "read packs/* delay=150", [&](Readers& readers) {
    const uint64_t reads = readers.reads;
    EXPECT_TRUE(Eventually([&] { return readers.reads > reads + 60; }));
    EXPECT_EQ(readers.failed, 0u);
  });
  ExpectAllFiles(mount.get());
  ExpectNothingWrongCached();
  ExpectAllFiles(mount.get());
}

TEST_F(FaultyStoreTest, AHangEndsInEioForThoseReadsAloneAndHoldsUpNothingCached) {
  ImageLayer cached = PublishLayer(2, 8, 300'000);
  StartOnFaultyStore(300);
  UniqueFd warm = MountServed(cached);
  ASSERT_TRUE(warm.valid());
  ExpectAllFiles(warm.get());
  auto cached_files = std::exchange(files_, {});
  ImageLayer cold = PublishLayer(3, 60, 600'000);
  UniqueFd mount = MountServed(cold);
  ASSERT_TRUE(mount.valid());
  Rules("read packs/* hang");
  Readers readers;
  StartReaders(readers, mount.get(), 40);  // more than there are threads for the store
  std::swap(files_, cached_files);
  const int64_t start = NowMs();
  for (int i = 0; i < 3; ++i) ExpectAllFiles(warm.get());
  EXPECT_LT(NowMs() - start, 10'000);
  std::swap(files_, cached_files);
  EXPECT_TRUE(Eventually([&] { return readers.failed > 40; }));
  EXPECT_LT(readers.longest_ms, 15'000);
  Rules("");
  EXPECT_TRUE(Eventually([&] {
    const uint64_t failed = readers.failed, reads = readers.reads;
    EXPECT_TRUE(Eventually([&] { return readers.reads > reads + 60; }));
    return readers.failed == failed;
  }));
  readers.Join();
  EXPECT_EQ(readers.wrong, 0u);
  ExpectAllFiles(mount.get());
  ExpectNothingWrongCached();
  ExpectAllFiles(mount.get());
}

TEST_F(FaultyStoreTest, WrongBytesAreNeverReturnedNorKept) {
  ImageLayer layer = PublishLayer(4, 80, 800'000);
  StartOnFaultyStore(1000);
  UniqueFd mount = MountServed(layer);
  ASSERT_TRUE(mount.valid());
  // Some of the time: the second try heals most.
  UnderLoad(mount.get(), "read packs/* flip p=0.3", [&](Readers& readers) {
    const uint64_t reads = readers.reads;
    EXPECT_TRUE(Eventually([&] { return readers.reads > reads + 100; }));
  });
  ExpectNothingWrongCached();
  ExpectAllFiles(mount.get());
}

TEST_F(FaultyStoreTest, WrongBytesAlwaysAreEioUntilTheStoreIsRight) {
  ImageLayer layer = PublishLayer(5, 80, 800'000);
  StartOnFaultyStore(1000);
  UniqueFd mount = MountServed(layer);
  ASSERT_TRUE(mount.valid());
  Rules("read packs/* flip");
  Result<std::string> got = ReadAt(mount.get(), "file0", 0, 4096);
  // The flipped bit may lie in another frame of what was read at once.
  if (!got.ok()) {
    EXPECT_EQ(got.status().error_number(), EIO) << got.status().ToString();
  }
  Readers readers;
  StartReaders(readers, mount.get(), 12);
  EXPECT_TRUE(Eventually([&] { return readers.failed > 0; }));
  Rules("");
  readers.Join();
  EXPECT_EQ(readers.wrong, 0u);
  ExpectAllFiles(mount.get());
  ExpectNothingWrongCached();
  ExpectAllFiles(mount.get());
}

TEST_F(FaultyStoreTest, ShortReadsAreReadToTheirEndAndCutFilesAreEio) {
  ImageLayer layer = PublishLayer(6, 80, 800'000);
  StartOnFaultyStore(500);
  UniqueFd mount = MountServed(layer);
  ASSERT_TRUE(mount.valid());
  Rules("read packs/* short");
  for (int i = 0; i < 10; ++i) {
    const std::string name = "file" + std::to_string(i);
    Result<std::string> got = ReadAt(mount.get(), name, 0, files_.at(name).size());
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_TRUE(*got == files_.at(name));
  }
  UnderLoad(mount.get(), "read packs/* cut",
            [&](Readers& readers) { EXPECT_TRUE(Eventually([&] { return readers.failed > 3; })); });
  ExpectAllFiles(mount.get());
  ExpectNothingWrongCached();
  ExpectAllFiles(mount.get());
}

TEST_F(FaultyStoreTest, ErrorsAreTriedAgainForABoundedTime) {
  ImageLayer layer = PublishLayer(7, 120, 800'000);
  StartOnFaultyStore(10'000);
  UniqueFd mount = MountServed(layer);
  ASSERT_TRUE(mount.valid());
  // Every second read fails: none of ours does.
  UnderLoad(mount.get(), "read packs/* errno=EIO p=0.5\nopen packs/* errno=ESTALE p=0.3",
            [&](Readers& readers) {
              const uint64_t reads = readers.reads;
              EXPECT_TRUE(Eventually([&] { return readers.reads > reads + 100; }));
              EXPECT_EQ(readers.failed, 0u);
            });
  ExpectNothingWrongCached();
  ExpectAllFiles(mount.get());
}

TEST_F(FaultyStoreTest, AStoreThatFailsOrIsGoneIsEioByTheDeadline) {
  for (const char* rules : {"read packs/* errno=EIO", "any packs* errno=ENOENT"}) {
    files_.clear();
    ImageLayer layer = PublishLayer(8 + rules[0], 80, 800'000);
    StartOnFaultyStore(700);
    UniqueFd mount = MountServed(layer);
    ASSERT_TRUE(mount.valid());
    UnderLoad(mount.get(), rules, [&](Readers& readers) {
      EXPECT_TRUE(Eventually([&] { return readers.failed > 5; })) << rules;
      EXPECT_LT(readers.longest_ms, 6000);
    });
    ExpectAllFiles(mount.get());
    ExpectNothingWrongCached();
    ExpectAllFiles(mount.get());
    mount.reset();
    KillServer(SIGKILL);
    LAYER_ASSERT_OK(layers_->Retain({}));
  }
  StartOnFaultyStore(700);
}

TEST_F(FaultyStoreTest, OneBrokenImageHoldsUpNoOther) {
  ImageLayer good = PublishLayer(9, 30, 600'000);
  auto good_files = std::exchange(files_, {});
  ImageLayer broken = PublishLayer(10, 30, 600'000);
  const PackId broken_pack = maps_.at(broken.data).entries[0].location.pack;
  StartOnFaultyStore(300);
  UniqueFd bad = MountServed(broken), fine = MountServed(good);
  ASSERT_TRUE(bad.valid());
  ASSERT_TRUE(fine.valid());
  Rules("read *" + broken_pack.ToHex() + "* flip");
  Readers failing;
  StartReaders(failing, bad.get(), 20);
  EXPECT_TRUE(Eventually([&] { return failing.failed > 5; }));
  std::swap(files_, good_files);  // the readers keep pointers into theirs
  Readers readers;
  StartReaders(readers, fine.get(), 6);
  EXPECT_TRUE(Eventually([&] { return readers.reads > 200; }));
  // A new server and a new cache object start beside it too.
  KillServer(SIGKILL);
  StartOnFaultyStore(300);
  auto next = OpenCache();
  EXPECT_TRUE(next->Ensure(good).ok());
  const uint64_t seen = readers.reads;
  EXPECT_TRUE(Eventually([&] { return readers.reads > seen + 200; }));
  readers.Join();
  failing.Join();
  EXPECT_EQ(readers.failed, 0u);
  EXPECT_EQ(readers.wrong, 0u);
  EXPECT_EQ(failing.wrong, 0u);
  ExpectAllFiles(fine.get());
}

// --- the cache's disk ---------------------------------------------------------------------------

class FaultyCacheTest : public ServingTest {
 protected:
  void SetDirectories(std::vector<std::string> directories, std::optional<uint64_t> budget) {
    LAYER_ASSERT_OK(SaveCacheSettings(cache_.root, {std::move(directories), budget}));
  }
};

TEST_F(FaultyCacheTest, AFullDiskMeansSlowerReadsAndRecovers) {
  ImageLayer layer = PublishLayer(20, 40, 1'000'000);
  const std::string disk = dir_->path() + "/disk";
  LAYER_ASSERT_OK(MakeDirectories(disk));
  ASSERT_EQ(::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=48m"), 0);
  SetDirectories({disk + "/cache"}, 40u << 20);
  // Somebody else fills it.
  const std::string filler = disk + "/filler";
  {
    Result<UniqueFd> fd = OpenFile(filler, O_WRONLY | O_CREAT | O_CLOEXEC);
    ASSERT_TRUE(fd.ok());
    const std::string block(1u << 20, 'f');
    while (WriteFull(fd->get(), block.data(), block.size()).ok()) {
    }
  }
  StartServer();
  {
    UniqueFd mount = MountServed(layer);
    ASSERT_TRUE(mount.valid());
    Readers readers;
    StartReaders(readers, mount.get(), 8);
    EXPECT_TRUE(Eventually([&] { return readers.reads > 300; }));
    EXPECT_LT(readers.longest_ms, 10'000);
    ExpectAllFiles(mount.get());
    EXPECT_LT(BlocksBelow(disk + "/cache"), 1u << 20);
    ASSERT_EQ(::unlink(filler.c_str()), 0);
    EXPECT_TRUE(Eventually([&] { return BlocksBelow(disk + "/cache") > (10u << 20); }));
    readers.Join();
    EXPECT_EQ(readers.failed + readers.wrong, 0u);
  }
  KillServer(SIGTERM);
  ASSERT_EQ(::umount2(disk.c_str(), 0), 0) << std::strerror(errno);
}

TEST_F(FaultyCacheTest, OthersWhoNeedTheDiskGetIt) {
  ImageLayer layer = PublishLayer(21, 30, 1'000'000);
  const std::string disk = dir_->path() + "/disk";
  LAYER_ASSERT_OK(MakeDirectories(disk));
  ASSERT_EQ(::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64m"), 0);
  SetDirectories({disk + "/cache"}, 60u << 20);
  StartServer();
  {
    UniqueFd mount = MountServed(layer);
    ASSERT_TRUE(mount.valid());
    const std::string last = "file" + std::to_string(files_.size() - 1);
    for (const auto& [name, content] : files_) {
      if (name == last) continue;  // so that it does not become complete
      ASSERT_TRUE(ReadAt(mount.get(), name, 0, content.size()).ok());
    }
    EXPECT_TRUE(Eventually([&] { return BlocksBelow(disk + "/cache") > (8u << 20); }));
    // Until what is fetched ahead is here too.
    uint64_t cached = 0;
    EXPECT_TRUE(Eventually([&] {
      const uint64_t before = std::exchange(cached, BlocksBelow(disk + "/cache"));
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      return before == cached;
    }));
    // Leaves less than the cache leaves others: it gives way.
    Result<UniqueFd> fd = OpenFile(disk + "/filler", O_WRONLY | O_CREAT | O_CLOEXEC);
    ASSERT_TRUE(fd.ok());
    struct statvfs space;
    ASSERT_EQ(::statvfs(disk.c_str(), &space), 0);
    const uint64_t left = space.f_bavail * space.f_frsize;
    ASSERT_EQ(::posix_fallocate(fd->get(), 0, static_cast<off_t>(left - (512u << 10))), 0);
    EXPECT_TRUE(Eventually([&] { return BlocksBelow(disk + "/cache") < cached - (512u << 10); }));
    ExpectAllFiles(mount.get());
  }
  KillServer(SIGTERM);
  ASSERT_EQ(::umount2(disk.c_str(), 0), 0) << std::strerror(errno);
}

TEST_F(FaultyCacheTest, ErrorsOfItsFilesAreNotSeen) {
  ImageLayer layer = PublishLayer(22, 40, 800'000);
  for (const char* points :
       {"imagefs.cache.read=error:5@7,imagefs.cache.write=error:5@20",
        "imagefs.cache.write=error:28@3,imagefs.cache.before_presence=error:5@9",
        "imagefs.cache.create=error:30", "imagefs.cache.prove=error:5@2",
        "imagefs.cache.complete.before_sync=error:5",
        "imagefs.cache.complete.before_rename=error:28"}) {
    StartServer(ServerOptions{.fail_points = points});
    UniqueFd mount = MountServed(layer);
    ASSERT_TRUE(mount.valid());
    Readers readers;
    StartReaders(readers, mount.get(), 8);
    EXPECT_TRUE(Eventually([&] { return readers.reads > 300; }));
    ExpectAllFiles(mount.get());
    readers.Join();
    EXPECT_EQ(readers.failed + readers.wrong, 0u) << points;
    mount.reset();
    KillServer(SIGKILL);
  }
  StartServer();
}

TEST_F(FaultyCacheTest, FlippedCutAndDeletedFilesAreFetchedAgain) {
  ImageLayer layer = PublishLayer(23, 40, 800'000);
  StartServer();
  UniqueFd mount = MountServed(layer);
  ASSERT_TRUE(mount.valid());
  // One file stays unread, so that the blob does not become complete.
  const std::string unread = "file39";
  Readers readers;
  const std::string content = std::move(files_.extract(unread).mapped());
  StartReaders(readers, mount.get(), 8);
  EXPECT_TRUE(Eventually([&] { return readers.reads > 300; }));
  const std::string part = cache_.PartPath(layer.data), full = cache_.FullPath(layer.data);
  std::mt19937_64 random(1);
  for (int round = 0; round < 12; ++round) {
    const std::string& path = PathExists(full) ? full : part;
    if (round % 3 == 0) {
      Result<UniqueFd> fd = OpenFile(path, O_RDWR | O_CLOEXEC);
      if (!fd.ok()) continue;
      // Not in the page cache, as after a fault of the disk.
      (void)::fdatasync(fd->get());
      (void)::posix_fadvise(fd->get(), 0, 0, POSIX_FADV_DONTNEED);
      for (int i = 0; i < 200; ++i) {
        const uint64_t at = random() % layer.data_bytes;
        char byte = 0;
        if (::pread(fd->get(), &byte, 1, static_cast<off_t>(at)) != 1) continue;
        byte = static_cast<char>(byte ^ 1);
        LAYER_ASSERT_OK(PWriteFull(fd->get(), &byte, 1, at));
      }
    } else if (round % 3 == 1) {
      (void)::truncate(path.c_str(), static_cast<off_t>(random() % layer.data_bytes));
    } else {
      (void)::unlink(path.c_str());
    }
    const uint64_t seen = readers.reads;
    EXPECT_TRUE(Eventually([&] { return readers.reads > seen + 100; }));
  }
  readers.Join();
  EXPECT_EQ(readers.failed, 0u);
  // A read that was under way in the very moment of a change may have seen it.
  EXPECT_LE(readers.wrong, 12u * 8u);
  std::printf("reads %lu, crossed by a change %lu\n", readers.reads.load(), readers.wrong.load());
  ExpectAllFiles(mount.get());
}

// --- eviction under real mounts -----------------------------------------------------------------

class EvictionTest : public ServingTest {
 protected:
  void SetBudget(uint64_t bytes) { LAYER_ASSERT_OK(SaveCacheSettings(cache_.root, {{}, bytes})); }
};

TEST_F(EvictionTest, ReadersSeeNothingOfItAndTheBudgetHolds) {
  SetBudget(10u << 20);
  ImageLayer layer = PublishLayer(30, 80, 900'000);
  ASSERT_GT(layer.data_bytes, 25u << 20);
  StartServer();
  UniqueFd mount = MountServed(layer);
  ASSERT_TRUE(mount.valid());
  Readers readers;
  StartReaders(readers, mount.get(), 16);
  uint64_t most = 0;
  EXPECT_TRUE(Eventually(
      [&] {
        most = std::max(most, BlocksBelow(cache_.root));
        return readers.reads > 3000;
      },
      60'000));
  readers.Join();
  EXPECT_EQ(readers.failed + readers.wrong, 0u);
  EXPECT_LE(most, 10u << 20);
  EXPECT_GT(most, 7u << 20);
  std::printf("reads %lu, longest %ld ms, most %lu KiB of 10240\n", readers.reads.load(),
              readers.longest_ms.load(), most >> 10);
  // An evicted range is fetched again, whatever the kernel keeps.
  ExpectAllFiles(mount.get());
}

TEST_F(EvictionTest, WhatIsMountedByItselfIsNeverTouchedWhoeverDies) {
  ImageLayer layer = PublishLayer(31, 20, 600'000);
  StartServer();
  {
    UniqueFd served = MountServed(layer);
    ASSERT_TRUE(served.valid());
    ExpectAllFiles(served.get());
  }
  ASSERT_TRUE(Eventually([&] { return layers_->Ensure(layer)->data_complete; }));
  Result<LocalLayer> local = layers_->Ensure(layer);
  ASSERT_TRUE(local.ok());
  Result<LayerMount> mount = MountLayer({local->metadata_path, local->data_path});
  ASSERT_TRUE(mount.ok()) << mount.status().ToString();
  // Nothing of it may stay, if it could; and servers come and go.
  SetBudget(0);
  Readers readers;
  StartReaders(readers, mount->mount.get(), 8);
  std::mt19937_64 random(1);
  for (int i = 0; i < 10; ++i) {
    const uint64_t seen = readers.reads;
    ASSERT_TRUE(Eventually([&] { return readers.reads > seen + 100 + random() % 300; }));
    KillServer(SIGKILL);
    StartServer();
  }
  EXPECT_TRUE(PathExists(local->data_path));
  readers.Join();
  EXPECT_EQ(readers.failed + readers.wrong, 0u);
  ExpectAllFiles(mount->mount.get());
  // Also when its name goes.
  ASSERT_EQ(::unlink(local->data_path.c_str()), 0);
  ExpectAllFiles(mount->mount.get());
  // One that went between Ensure and the mount is served instead.
  Result<LayerMount> instead =
      MountLayer({local->metadata_path, local->data_path, mountpoint_ + "/" + local->data_blob});
  ASSERT_TRUE(instead.ok()) << instead.status().ToString();
  ExpectAllFiles(instead->mount.get());
  instead->mount.reset();
  mount->mount.reset();
  // Unmounted, another is evicted at once.
  SetBudget(1u << 30);
  {
    UniqueFd served = MountServed(layer);
    ASSERT_TRUE(served.valid());
    ASSERT_TRUE(Eventually([&] {
      ExpectAllFiles(served.get());
      return PathExists(local->data_path);
    }));
  }
  SetBudget(0);
  EXPECT_TRUE(Eventually([&] { return !PathExists(local->data_path); }, 30'000));
}

}  // namespace
}  // namespace esker
