// The whole lazy path with the real parts: store, blob server process, FUSE, EROFS.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "testing/serving_fixture.h"

namespace esker {
namespace {

using testing::NowMs;
using testing::ServingTest;

TEST_F(ServingTest, ServesALayerByteForByteAndThenMountsItWithoutTheServer) {
  ImageLayer layer = PublishLayer(1, 60, 2'500'000);
  StartServer();
  {
    UniqueFd mount = MountServed(layer);
    ASSERT_TRUE(mount.valid());
    ExpectAllFiles(mount.get());
  }
  ASSERT_TRUE(Eventually([&] { return layers_->Ensure(layer)->data_complete; }));
  KillServer(SIGTERM);
  ASSERT_EQ(::unlink(PackPath().c_str()), 0);
  Result<LocalLayer> local = layers_->Ensure(layer);
  ASSERT_TRUE(local.ok());
  Result<LayerMount> mount = MountLayer({local->metadata_path, local->data_path});
  ASSERT_TRUE(mount.ok()) << mount.status().ToString();
  ExpectAllFiles(mount->mount.get());
}

TEST_F(ServingTest, TheDirectoryShowsBlobsAsReadOnlyFiles) {
  ImageLayer layer = PublishLayer(2, 3, 10'000);
  StartServer();
  const std::string path = mountpoint_ + "/" + layer.data.ToHex();
  struct stat status;
  // A name that is not there yet is looked up again.
  EXPECT_EQ(::stat(path.c_str(), &status), -1);
  EXPECT_EQ(errno, ENOENT);
  ASSERT_TRUE(layers_->Ensure(layer).ok());
  ASSERT_EQ(::stat(path.c_str(), &status), 0) << std::strerror(errno);
  EXPECT_EQ(static_cast<uint64_t>(status.st_size), layer.data_bytes);
  EXPECT_EQ(status.st_mode, S_IFREG | 0400u);
  EXPECT_EQ(*ListDirectory(mountpoint_), std::vector<std::string>{layer.data.ToHex()});
  EXPECT_EQ(OpenFile(path, O_WRONLY | O_CLOEXEC).status().error_number(), EROFS);
  for (const char* name : {"x", "..%2f", "AAAA"}) {
    EXPECT_EQ(::stat((mountpoint_ + "/" + name).c_str(), &status), -1);
  }
}

TEST_F(ServingTest, FiftyReadersSeeNothingOfTwentyKills) {
  ImageLayer layer = PublishLayer(3, 100, 1'500'000);
  StartServer();
  {
    UniqueFd mount = MountServed(layer);
    ASSERT_TRUE(mount.valid());
    Readers readers;
    StartReaders(readers, mount.get(), 50);
    std::mt19937_64 random(1);
    for (int kill = 0; kill < 20; ++kill) {
      // Under way again, then at any instant.
      uint64_t seen = readers.reads;
      ASSERT_TRUE(Eventually([&] { return readers.reads > seen + random() % 200; }));
      KillServer(SIGKILL);
      StartServer();
    }
    uint64_t seen = readers.reads;
    EXPECT_TRUE(Eventually([&] { return readers.reads > seen + 500; }));
    readers.Join();
    EXPECT_EQ(readers.failed, 0u);
    EXPECT_EQ(readers.wrong, 0u);
    RecordProperty("reads", static_cast<int>(readers.reads));
    RecordProperty("longest_ms", static_cast<int>(readers.longest_ms));
    std::printf("reads %lu, longest %ld ms\n", readers.reads.load(), readers.longest_ms.load());
    ExpectAllFiles(mount.get());
  }
}

TEST_F(ServingTest, ServersThatDieBeforeOrWhileTheyAnswerTheFirstRequestAreReplaced) {
  ImageLayer layer = PublishLayer(12, 3, 10'000);
  ASSERT_TRUE(layers_->Ensure(layer).ok());
  // Waits in the kernel from before the first server on: INIT, then LOOKUP.
  struct stat status {};
  std::atomic<int> result{1};
  std::thread waiter([&] {
    result = ::stat((mountpoint_ + "/" + layer.data.ToHex()).c_str(), &status) == 0 ? 0 : -errno;
  });
  std::mt19937_64 random(1);
  for (int i = 0; i < 20; ++i) {
    StartServer();
    // At any instant of its start, on a busy machine too.
    const int64_t until = Clock::System().MonotonicNanos() + random() % 15'000'000;
    while (Clock::System().MonotonicNanos() < until) std::this_thread::yield();
    KillServer(SIGKILL);
  }
  StartServer();
  waiter.join();
  EXPECT_EQ(result, 0) << std::strerror(-result);
  EXPECT_EQ(static_cast<uint64_t>(status.st_size), layer.data_bytes);
}

TEST_F(ServingTest, AnUpgradeBySigtermIsNotSeenWhileTheStoreIsAway) {
  ImageLayer layer = PublishLayer(4, 10, 500'000);
  StartServer();
  {
    UniqueFd mount = MountServed(layer);
    ASSERT_TRUE(mount.valid());
    const std::string away = dir_->path() + "/away";
    ASSERT_EQ(std::rename(PackPath().c_str(), away.c_str()), 0);
    Readers readers;
    StartReaders(readers, mount.get(), 4);  // all wait for the pack
    KillServer(SIGTERM);
    StartServer();
    ASSERT_EQ(std::rename(away.c_str(), PackPath().c_str()), 0);
    EXPECT_TRUE(Eventually([&] { return readers.reads > 20; }));
    readers.Join();
    EXPECT_EQ(readers.failed, 0u);
    EXPECT_EQ(readers.wrong, 0u);
  }
}

TEST_F(ServingTest, ADamagedPackGivesEioAndHeals) {
  ImageLayer layer = PublishLayer(5, 30, 400'000);
  StartServer();
  {
    UniqueFd mount = MountServed(layer);
    ASSERT_TRUE(mount.valid());
    ASSERT_EQ(::chmod(PackPath().c_str(), 0600), 0);
    std::string whole = *ReadFileToString(PackPath(), 1u << 30);
    Result<UniqueFd> pack = OpenFile(PackPath(), O_WRONLY | O_CLOEXEC);
    ASSERT_TRUE(pack.ok());
    const BlobMap& map = maps_.at(layer.data);
    for (const BlobMap::Entry& entry : map.entries) {
      char byte = static_cast<char>(whole[entry.location.frame_offset + 9] ^ 1);
      LAYER_ASSERT_OK(PWriteFull(pack->get(), &byte, 1, entry.location.frame_offset + 9));
    }
    int failed = 0;
    for (const auto& [name, content] : files_) {
      Result<std::string> got = ReadAt(mount.get(), name, 0, content.size());
      if (!got.ok()) {
        EXPECT_EQ(got.status().error_number(), EIO) << got.status().ToString();
        ++failed;
      } else {
        EXPECT_TRUE(*got == content) << name;  // never wrong bytes
      }
    }
    EXPECT_GT(failed, 20);
    LAYER_ASSERT_OK(PWriteFull(pack->get(), whole.data(), whole.size(), 0));
    ExpectAllFiles(mount.get());
  }
}

TEST_F(ServingTest, AStoreThatIsGoneEndsInEioByTheDeadlineAndHoldsUpNoCachedBlob) {
  ImageLayer cached = PublishLayer(6, 10, 300'000);
  auto cached_files = files_;
  StartServer(500);
  {
    UniqueFd warm = MountServed(cached);
    ASSERT_TRUE(warm.valid());
    ExpectAllFiles(warm.get());
    files_.clear();
    ImageLayer cold = PublishLayer(7, 40, 300'000);
    UniqueFd mount = MountServed(cold);
    ASSERT_TRUE(mount.valid());
    ASSERT_EQ(std::rename(PackPath().c_str(), (dir_->path() + "/away").c_str()), 0);
    Readers stuck;
    StartReaders(stuck, mount.get(), 40);  // more than there are fetch threads
    const int64_t start = NowMs();
    std::swap(files_, cached_files);
    ExpectAllFiles(warm.get());
    EXPECT_LT(NowMs() - start, 5000);
    std::swap(files_, cached_files);
    EXPECT_TRUE(Eventually([&] { return stuck.failed > 0; }));
    ASSERT_EQ(std::rename((dir_->path() + "/away").c_str(), PackPath().c_str()), 0);
    stuck.Join();
    EXPECT_EQ(stuck.wrong, 0u);
    ExpectAllFiles(mount.get());
  }
}

TEST_F(ServingTest, AStoreThatHangsEndsInEioToo) {
  ImageLayer layer = PublishLayer(10, 30, 300'000);
  StartServer(200);
  {
    UniqueFd mount = MountServed(layer);
    ASSERT_TRUE(mount.valid());
    // A file system whose server never answers.
    const std::string store = store_->path(), away = dir_->path() + "/away";
    ASSERT_EQ(std::rename(store.c_str(), away.c_str()), 0);
    LAYER_ASSERT_OK(MakeDirectories(store));
    Result<UniqueFd> silent = MountBlobFs(store);
    ASSERT_TRUE(silent.ok()) << silent.status().ToString();
    const int64_t start = NowMs();
    Result<std::string> got = ReadAt(mount.get(), "file0", 0, 4096);
    EXPECT_EQ(got.status().error_number(), EIO) << got.status().ToString();
    EXPECT_LT(NowMs() - start, 10'000);
    silent->reset();  // ends all waiting for it
    ASSERT_TRUE(Eventually([&] { return ::umount2(store.c_str(), 0) == 0; }));
    ASSERT_EQ(::rmdir(store.c_str()), 0);
    ASSERT_EQ(std::rename(away.c_str(), store.c_str()), 0);
    ExpectAllFiles(mount.get());
  }
}

TEST_F(ServingTest, AFullCacheDiskMeansUncachedReads) {
  ImageLayer layer = PublishLayer(11, 30, 1'000'000);
  ASSERT_EQ(::mount("tmpfs", cache_.DataDirectory().c_str(), "tmpfs", 0, "size=2m"), 0);
  StartServer();
  {
    UniqueFd mount = MountServed(layer);
    ASSERT_TRUE(mount.valid());
    for (int round = 0; round < 3; ++round) ExpectAllFiles(mount.get());
    EXPECT_FALSE(layers_->Ensure(layer)->data_complete);
  }
  KillServer(SIGTERM);
  ASSERT_EQ(::umount2(cache_.DataDirectory().c_str(), 0), 0) << std::strerror(errno);
}

TEST_F(ServingTest, FilesThatCannotBeMountedGoThroughLoopDevices) {
  ImageLayer layer = PublishLayer(8, 10, 100'000);
  StartServer();
  {
    UniqueFd mount = MountServed(layer);
    ExpectAllFiles(mount.get());
  }
  ASSERT_TRUE(Eventually([&] { return layers_->Ensure(layer)->data_complete; }));
  Result<LocalLayer> local = layers_->Ensure(layer);
  ASSERT_TRUE(local.ok());
  // An overlay is what the kernel refuses with ENOTBLK.
  const std::string merged = dir_->path() + "/merged";
  LAYER_ASSERT_OK(MakeDirectories(merged));
  const std::string options = "lowerdir=" + cache_.MetaDirectory() + ":" + cache_.DataDirectory();
  ASSERT_EQ(::mount("overlay", merged.c_str(), "overlay", MS_RDONLY, options.c_str()), 0)
      << std::strerror(errno);
  {
    Result<LayerMount> mount = MountLayer({merged + "/" + layer.metadata.ToHex() + ".erofs",
                                           merged + "/" + layer.data.ToHex() + ".full"});
    ASSERT_TRUE(mount.ok()) << mount.status().ToString();
    EXPECT_FALSE(mount->file_backed);
    EXPECT_TRUE(mount->loop[0].valid());
    EXPECT_TRUE(mount->loop[1].valid());
    ExpectAllFiles(mount->mount.get());
  }
  // Released by AUTOCLEAR, or the overlay would be busy.
  EXPECT_TRUE(Eventually([&] { return ::umount2(merged.c_str(), 0) == 0; }));
}

TEST_F(ServingTest, ALayerWithoutDataMountsAlone) {
  erofs::Tree tree;
  erofs::Node link;
  link.type = erofs::FileType::kSymlink;
  link.mode = 0777;
  link.symlink_target = "target";
  LAYER_ASSERT_OK(tree.Put("a/b/link", link));
  Result<std::string> metadata = erofs::WriteMetadata(tree, {});
  ASSERT_TRUE(metadata.ok()) << metadata.status().ToString();
  auto writer = PackWriter::Create(*store_);
  ASSERT_TRUE(writer.ok());
  ImageLayer layer = Publish(std::move(*writer), {}, *metadata, 0);
  layer.data = BlobId();
  Result<LocalLayer> local = layers_->Ensure(layer);
  ASSERT_TRUE(local.ok()) << local.status().ToString();
  EXPECT_EQ(local->data_blob, "");
  Result<LayerMount> mount = MountLayer({local->metadata_path, ""});
  ASSERT_TRUE(mount.ok()) << mount.status().ToString();
  char target[16] = {};
  EXPECT_EQ(::readlinkat(mount->mount.get(), "a/b/link", target, sizeof(target)), 6)
      << std::strerror(errno);
  EXPECT_STREQ(target, "target");
  // No server is needed, and none was started: the session ends unanswered.
}

TEST_F(ServingTest, APathLongerThanAMountOptionWorks) {
  ImageLayer layer = PublishLayer(9, 3, 10'000);
  StartServer();
  Result<LocalLayer> local = layers_->Ensure(layer);
  ASSERT_TRUE(local.ok());
  std::string deep = dir_->path();
  for (int i = 0; i < 5; ++i) deep += "/" + std::string(60, 'd');
  LAYER_ASSERT_OK(MakeDirectories(deep));
  ASSERT_EQ(::link(local->metadata_path.c_str(), (deep + "/m").c_str()), 0);
  Result<LayerMount> mount = MountLayer({deep + "/m", mountpoint_ + "/" + local->data_blob});
  ASSERT_TRUE(mount.ok()) << mount.status().ToString();
  ExpectAllFiles(mount->mount.get());
}

TEST_F(ServingTest, AMountThatFailsSaysWhatTheKernelSaid) {
  const std::string path = dir_->path() + "/not-erofs";
  LAYER_ASSERT_OK(ReplaceFileDurably(path, std::string(8192, 'x')));
  Result<LayerMount> mount = MountLayer({path, ""});
  EXPECT_EQ(mount.status().error_number(), EINVAL) << mount.status().ToString();
  EXPECT_NE(mount.status().message().find(path), std::string::npos);
}

}  // namespace
}  // namespace esker
