// The blob server is killed at each step that changes the cache; what it leaves is compared byte
// for byte, and the budget holds.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "../serve/node_cache.h"
#include "testing/serving_fixture.h"

namespace esker {
namespace {

using testing::ServingTest;

class CacheCrashTest : public ServingTest {
 protected:
  void SetBudget(uint64_t bytes) { LAYER_ASSERT_OK(SaveCacheSettings(cache_.root, {{}, bytes})); }
  uint64_t Blocks() const {
    uint64_t bytes = 0;
    std::error_code ignored;
    for (auto it = std::filesystem::recursive_directory_iterator(cache_.root, ignored);
         it != std::filesystem::recursive_directory_iterator(); it.increment(ignored)) {
      struct stat status;
      if (::lstat(it->path().c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
        bytes += static_cast<uint64_t>(status.st_blocks) * 512;
      }
    }
    return bytes;
  }
  // A file under this name is whole and right, at any instant, or it may not be mounted.
  void ExpectFullFileIsRight(const ImageLayer& layer) {
    Result<std::string> bytes = ReadFileToString(cache_.FullPath(layer.data), 1u << 30);
    if (!bytes.ok()) return;
    const BlobMap& map = maps_.at(layer.data);
    ASSERT_EQ(bytes->size(), map.size_bytes);
    for (const BlobMap::Entry& entry : map.entries) {
      ASSERT_EQ(Sha256::Of(bytes->data() + entry.blob_offset, entry.chunk.length),
                entry.chunk.digest);
    }
  }
  // Starts a server that dies at the point, under readers who must notice nothing.
  void DieAt(const ImageLayer& layer, int mount, const std::string& point, uint64_t budget) {
    Readers readers;
    StartReaders(readers, mount, 8);
    StartServer(ServerOptions{.fail_points = point});
    const bool died = server_.WaitExit(30'000).ok();
    EXPECT_TRUE(died) << point << " was not reached";
    if (!died) LAYER_EXPECT_OK(server_.Kill(SIGKILL));
    LAYER_EXPECT_OK(server_.WaitExit(30'000));
    EXPECT_TRUE(server_.Reap().ok());
    server_ = Process();
    ExpectFullFileIsRight(layer);
    EXPECT_LE(Blocks(), budget) << point;
    StartServer();
    const uint64_t seen = readers.reads;
    uint64_t most = 0;
    EXPECT_TRUE(Eventually([&] {
      most = std::max(most, Blocks());
      return readers.reads > seen + 200;
    })) << point;
    readers.Join();
    EXPECT_EQ(readers.failed, 0u) << point;
    EXPECT_EQ(readers.wrong, 0u) << point;
    EXPECT_LE(most, budget) << point;
    ExpectAllFiles(mount);
    ExpectFullFileIsRight(layer);
    KillServer(SIGKILL);
  }
};

TEST_F(CacheCrashTest, WhileKeepingAndEvicting) {
  constexpr uint64_t kBudget = 8u << 20;
  SetBudget(kBudget);
  ImageLayer layer = PublishLayer(1, 60, 800'000);
  ASSERT_GT(layer.data_bytes, 2 * kBudget);
  StartServer();
  UniqueFd mount = MountServed(layer);
  ASSERT_TRUE(mount.valid());
  KillServer(SIGKILL);
  for (const char* point :
       {"imagefs.cache.create", "imagefs.cache.write", "imagefs.cache.before_presence",
        "imagefs.cache.read", "imagefs.cache.prove", "imagefs.cache.evict.before_clear",
        "imagefs.cache.evict.before_punch", "imagefs.cache.evict.after_punch"}) {
    // The first time from nothing, then at a later hit over what is there.
    for (const char* when : {"=kill", "=kill@5"}) {
      if (std::string_view(point).ends_with("create")) {
        if (std::string_view(when).size() > 5) continue;
        (void)::unlink(cache_.PartPath(layer.data).c_str());
      }
      DieAt(layer, mount.get(), std::string(point) + when, kBudget);
      if (HasFatalFailure()) return;
    }
  }
  StartServer();
}

TEST_F(CacheCrashTest, WhileCompletingAndDroppingWhatIsComplete) {
  constexpr uint64_t kBudget = 1u << 30;
  SetBudget(kBudget);
  ImageLayer layer = PublishLayer(2, 20, 500'000);
  StartServer();
  UniqueFd mount = MountServed(layer);
  ASSERT_TRUE(mount.valid());
  KillServer(SIGKILL);
  for (const char* point :
       {"imagefs.cache.complete.before_sync", "imagefs.cache.complete.before_rename",
        "imagefs.cache.complete.after_rename"}) {
    (void)::unlink(cache_.FullPath(layer.data).c_str());
    (void)::unlink(cache_.PartPath(layer.data).c_str());
    DieAt(layer, mount.get(), std::string(point) + "=kill", kBudget);
    if (HasFatalFailure()) return;
  }
  for (const char* point :
       {"imagefs.cache.retire.before_unlink", "imagefs.cache.retire.after_unlink"}) {
    StartServer();
    ASSERT_TRUE(Eventually([&] {
      ExpectAllFiles(mount.get());
      return PathExists(cache_.FullPath(layer.data));
    }));
    KillServer(SIGKILL);
    SetBudget(0);
    StartServer(ServerOptions{.fail_points = std::string(point) + "=kill"});
    ASSERT_TRUE(server_.WaitExit(30'000).ok()) << point << " was not reached";
    ASSERT_TRUE(server_.Reap().ok());
    server_ = Process();
    ExpectFullFileIsRight(layer);
    SetBudget(kBudget);
    StartServer();
    ExpectAllFiles(mount.get());
    KillServer(SIGKILL);
  }
  StartServer();
}

// Not at a known step: at any instant, with a budget that is far too small.
TEST_F(CacheCrashTest, AtAnyInstant) {
  constexpr uint64_t kBudget = 6u << 20;
  SetBudget(kBudget);
  ImageLayer layer = PublishLayer(3, 60, 700'000);
  StartServer();
  UniqueFd mount = MountServed(layer);
  ASSERT_TRUE(mount.valid());
  Readers readers;
  StartReaders(readers, mount.get(), 24);
  std::mt19937_64 random(1);
  uint64_t most = 0;
  for (int kill = 0; kill < 25; ++kill) {
    const uint64_t seen = readers.reads;
    ASSERT_TRUE(Eventually([&] { return readers.reads > seen + random() % 150; }));
    KillServer(SIGKILL);
    most = std::max(most, Blocks());
    StartServer();
  }
  readers.Join();
  EXPECT_EQ(readers.failed, 0u);
  EXPECT_EQ(readers.wrong, 0u);
  EXPECT_LE(most, kBudget);
  std::printf("reads %lu, longest %ld ms, most %lu KiB of %lu\n", readers.reads.load(),
              readers.longest_ms.load(), most >> 10, kBudget >> 10);
  ExpectAllFiles(mount.get());
}

}  // namespace
}  // namespace esker
