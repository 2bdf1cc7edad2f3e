// The cache's budget, order of eviction, directories, and care. Kills: cache_crash_test.cc; full
// and failing disks under real mounts: mount/serving_faults_test.cc.
#include "node_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/failpoint.h"
#include "testing/cache_server.h"

namespace esker {
namespace {

using testing::CacheServer;
using testing::TestBlob;

constexpr uint64_t kMiB = 1u << 20;
const auto kNever = [] { return false; };

uint64_t BlocksBelow(const std::string& directory) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    struct stat status;
    if (entry.is_regular_file() && ::lstat(entry.path().c_str(), &status) == 0) {
      bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

class NodeCacheTest : public testing::BlobTest {
 protected:
  void TearDown() override { SERVE_ASSERT_OK(ArmFailPoints("")); }
  void SetBudget(uint64_t bytes, std::vector<std::string> more = {}) {
    SERVE_ASSERT_OK(SaveCacheSettings(cache_.root, {std::move(more), bytes}));
  }
  std::unique_ptr<CacheServer> NewServer(const Clock& clock = Clock::System()) {
    return std::make_unique<CacheServer>(cache_.root, StorePath(), clock);
  }
  // Chunks of 64 KiB that do not shrink much.
  TestBlob PublishMiB(uint64_t seed, size_t mib) {
    TestBlob blob = testing::PublishBlob(*store_, seed, std::vector<uint32_t>(mib * 16, 64u << 10));
    PutMap(blob.map);
    return blob;
  }
  void ExpectSame(CacheServer& server, const TestBlob& blob, uint64_t offset, size_t size) {
    Result<std::string> got = server.Read(blob.map.id, offset, size);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_TRUE(*got == blob.bytes.substr(offset, size)) << offset << "+" << size;
  }
  void ExpectWhole(CacheServer& server, const TestBlob& blob) {
    for (uint64_t at = 0; at < blob.bytes.size(); at += kMiB) {
      ExpectSame(server, blob, at, std::min<size_t>(kMiB, blob.bytes.size() - at));
    }
  }
  // Which MiB of the blob are read without the store.
  std::vector<bool> CachedMiB(CacheServer& server, const TestBlob& blob) {
    auto served = server.registry.Find(blob.map.id);
    EXPECT_TRUE(served.ok());
    std::vector<bool> out;
    for (uint32_t chunk = 0; chunk < blob.map.entries.size(); chunk += 16) {
      out.push_back((*served)->cache_file().Has(chunk));
    }
    return out;
  }
  template <typename F>
  static bool Eventually(F condition, int64_t timeout_ms = 20'000) {
    const int64_t deadline = Clock::System().MonotonicNanos() + timeout_ms * 1'000'000;
    while (!condition()) {
      if (Clock::System().MonotonicNanos() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
  static void FlipByte(const std::string& path, uint64_t offset) {
    Result<UniqueFd> fd = OpenFile(path, O_RDWR | O_CLOEXEC);
    ASSERT_TRUE(fd.ok()) << fd.status().ToString();
    char byte;
    SERVE_ASSERT_OK(PReadExact(fd->get(), &byte, 1, offset, path));
    byte = static_cast<char>(byte ^ 0x40);
    SERVE_ASSERT_OK(PWriteFull(fd->get(), &byte, 1, offset));
  }
};

TEST_F(NodeCacheTest, SettingsSurviveAndDamagedOnesAreIgnored) {
  const CacheSettings settings{{cache_.root, "/b"}, 77};
  SERVE_ASSERT_OK(SaveCacheSettings(cache_.root, settings));
  EXPECT_EQ(LoadCacheSettings(cache_.root), settings);
  FlipByte(cache_.SettingsPath(), 9);
  const CacheSettings fallback{{cache_.root}, std::nullopt};
  EXPECT_EQ(LoadCacheSettings(cache_.root), fallback);
  ASSERT_EQ(::unlink(cache_.SettingsPath().c_str()), 0);
  EXPECT_EQ(LoadCacheSettings(cache_.root), fallback);
}

TEST_F(NodeCacheTest, WithoutABudgetHalfTheFileSystemIsTheBudget) {
  auto server = NewServer();
  const CacheStats stats = server->cache.Stats();
  EXPECT_GT(stats.budget_bytes, 0u);
}

TEST_F(NodeCacheTest, StaysBelowItsBudgetAndAlwaysReadsRight) {
  SetBudget(8 * kMiB);
  std::vector<TestBlob> blobs;
  for (int i = 0; i < 4; ++i) blobs.push_back(PublishMiB(i, 5));
  auto server = NewServer();
  uint64_t most = 0;
  for (int round = 0; round < 3; ++round) {
    for (const TestBlob& blob : blobs) {
      for (uint64_t at = 0; at < blob.bytes.size(); at += kMiB) {
        ExpectSame(*server, blob, at, kMiB);
        most = std::max(most, BlocksBelow(cache_.root));
      }
    }
  }
  EXPECT_LE(most, 8 * kMiB);
  EXPECT_GT(most, 6 * kMiB);
  EXPECT_GT(server->cache.Stats().evictions, 0u);
  EXPECT_TRUE(Eventually([&] { return server->cache.Stats().used_bytes <= 8 * kMiB * 19 / 20; }));
}

TEST_F(NodeCacheTest, ABudgetOfNothingMeansUncachedReads) {
  SetBudget(0);
  TestBlob blob = PublishMiB(1, 3);
  auto server = NewServer();
  for (int round = 0; round < 2; ++round) ExpectWhole(*server, blob);
  EXPECT_EQ(server->counters.reads_from_cache, 0u);
  EXPECT_EQ(BlocksBelow(cache_.DataDirectory()), 0u);
}

TEST_F(NodeCacheTest, ABudgetThatShrinksIsReachedWithoutARestart) {
  SetBudget(100 * kMiB);
  TestBlob blob = PublishMiB(1, 12);
  auto server = NewServer();
  ExpectWhole(*server, blob);
  EXPECT_GT(BlocksBelow(cache_.root), 12 * kMiB);
  SetBudget(4 * kMiB);
  EXPECT_TRUE(Eventually([&] { return BlocksBelow(cache_.root) <= 4 * kMiB; }));
  ExpectWhole(*server, blob);
}

TEST_F(NodeCacheTest, TheRangesUsedLongestAgoGoFirst) {
  SetBudget(100 * kMiB);
  FakeClock clock;
  TestBlob a = PublishMiB(1, 6), b = PublishMiB(2, 6);
  auto server = NewServer(clock);
  ExpectWhole(*server, a);
  clock.Advance(1'000'000'000);
  ExpectWhole(*server, b);
  clock.Advance(1'000'000'000);
  ExpectSame(*server, a, 2 * kMiB + 5, 100);  // read again: newer than all of b
  ExpectSame(*server, a, 5 * kMiB + 5, 100);
  ASSERT_TRUE(server->cache.Prune({.keep_bytes = UINT64_MAX}, kNever).ok());  // counts exactly
  const uint64_t used = server->cache.Stats().used_bytes;
  Result<PruneReport> dry =
      server->cache.Prune({.keep_bytes = used - 4 * kMiB, .dry_run = true}, kNever);
  ASSERT_TRUE(dry.ok());
  EXPECT_EQ(dry->freed_bytes, 4 * kMiB);
  EXPECT_EQ(server->cache.Stats().used_bytes, used);
  Result<PruneReport> done = server->cache.Prune({.keep_bytes = used - 4 * kMiB}, kNever);
  ASSERT_TRUE(done.ok()) << done.status().ToString();
  EXPECT_EQ(done->freed_bytes, 4 * kMiB);
  EXPECT_EQ(done->blobs_touched, 1u);
  EXPECT_EQ(CachedMiB(*server, a), (std::vector<bool>{false, false, true, false, false, true}));
  EXPECT_EQ(CachedMiB(*server, b), std::vector<bool>(6, true));
  ASSERT_TRUE(server->cache.Prune({.keep_bytes = used - 7 * kMiB}, kNever).ok());
  EXPECT_EQ(CachedMiB(*server, a), (std::vector<bool>{false, false, true, false, false, true}));
  ExpectWhole(*server, a);
  ExpectWhole(*server, b);
  // By age, and all.
  clock.Advance(3'600'000'000'000);
  ExpectSame(*server, b, 0, 10);
  ASSERT_TRUE(
      server->cache.Prune({.keep_bytes = UINT64_MAX, .unused_for_ms = 60'000}, kNever).ok());
  EXPECT_EQ(CachedMiB(*server, a), std::vector<bool>(6, false));
  EXPECT_EQ(CachedMiB(*server, b), (std::vector<bool>{true, false, false, false, false, false}));
  ASSERT_TRUE(server->cache.Prune({.keep_bytes = 0}, kNever).ok());
  EXPECT_EQ(CachedMiB(*server, b), std::vector<bool>(6, false));
  ExpectWhole(*server, b);
}

TEST_F(NodeCacheTest, TheNextServerKnowsRoughlyWhatWasUsed) {
  SetBudget(100 * kMiB);
  FakeClock clock;
  TestBlob a = PublishMiB(1, 3), b = PublishMiB(2, 3);
  {
    auto server = NewServer(clock);
    ExpectWhole(*server, b);
    clock.Advance(1'000'000'000);
    ExpectWhole(*server, a);
    clock.Advance(1'000'000'000);
    ExpectSame(*server, b, 0, 10);
    (void)server->cache.Prune({.keep_bytes = UINT64_MAX}, kNever);  // records the uses too
  }
  // None of them is in memory: they are found by their files.
  auto server = NewServer(clock);
  const uint64_t used = server->cache.Stats().used_bytes;
  ASSERT_TRUE(server->cache.Prune({.keep_bytes = used - 2 * kMiB}, kNever).ok());
  EXPECT_EQ(CachedMiB(*server, b), std::vector<bool>(3, true));
  EXPECT_EQ(CachedMiB(*server, a), (std::vector<bool>{false, false, true}));
}

TEST_F(NodeCacheTest, ReadersUnderEvictionSeeNothingWrong) {
  SetBudget(6 * kMiB);
  std::vector<TestBlob> blobs;
  for (int i = 0; i < 3; ++i) blobs.push_back(PublishMiB(i, 4));
  auto server = NewServer();
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> reads{0}, wrong{0}, failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      while (!stop) {
        const TestBlob& blob = blobs[random() % blobs.size()];
        const size_t size = 1 + random() % 200'000;
        const uint64_t at = random() % (blob.bytes.size() - size);
        Result<std::string> got = server->Read(blob.map.id, at, size);
        if (!got.ok()) {
          ++failed;
        } else if (*got != blob.bytes.substr(at, size)) {
          ++wrong;
        }
        ++reads;
      }
    });
  }
  // On top of the eviction that the budget brings: everything, again and again.
  for (int i = 0; i < 200; ++i) {
    Result<PruneReport> pruned = server->cache.Prune({.keep_bytes = i % 4 * kMiB}, kNever);
    EXPECT_TRUE(pruned.ok());
  }
  EXPECT_TRUE(Eventually([&] { return reads > 2000; }));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(failed, 0u);
  EXPECT_LE(BlocksBelow(cache_.root), 6 * kMiB);
}

TEST_F(NodeCacheTest, ACompleteBlobThatSomebodyHasOpenIsLeftAndElseGoesWhole) {
  SetBudget(100 * kMiB);
  TestBlob blob = PublishMiB(1, 3);
  auto server = NewServer();
  ExpectWhole(*server, blob);
  SERVE_ASSERT_OK(server->Complete(blob.map.id));
  const std::string path = cache_.FullPath(blob.map.id);
  EXPECT_TRUE(IsBlobComplete(cache_, blob.map.id, blob.bytes.size()));
  // As a mount would have it.
  Result<UniqueFd> open = OpenFile(path, O_RDONLY | O_CLOEXEC);
  ASSERT_TRUE(open.ok());
  ASSERT_TRUE(server->cache.Prune({.keep_bytes = 0}, kNever).ok());
  EXPECT_TRUE(PathExists(path));
  std::vector<CachedBlob> listed;
  auto collect = [&](const CachedBlob& one) {
    listed.push_back(one);
    return true;
  };
  SERVE_ASSERT_OK(server->cache.List(collect));
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_TRUE(listed[0].mounted);
  EXPECT_TRUE(listed[0].complete);
  EXPECT_EQ(listed[0].size_bytes, blob.bytes.size());
  EXPECT_EQ(listed[0].cached_bytes, blob.bytes.size());
  open->reset();
  listed.clear();
  SERVE_ASSERT_OK(server->cache.List(collect));
  EXPECT_FALSE(listed[0].mounted);
  open = OpenFile(path, O_RDONLY | O_CLOEXEC);
  open->reset();
  ASSERT_TRUE(server->cache.Prune({.keep_bytes = 0}, kNever).ok());
  EXPECT_FALSE(PathExists(path));
  ExpectWhole(*server, blob);
  // Whoever opened it before its name went reads what it held.
  SERVE_ASSERT_OK(server->Complete(blob.map.id));
  open = OpenFile(path, O_RDONLY | O_CLOEXEC);
  ASSERT_TRUE(open.ok());
  ASSERT_EQ(::unlink(path.c_str()), 0);
  ExpectWhole(*server, blob);
  ASSERT_TRUE(server->cache.Prune({.keep_bytes = 0}, kNever).ok());
  std::string bytes(blob.bytes.size(), '\0');
  SERVE_ASSERT_OK(PReadExact(open->get(), bytes.data(), bytes.size(), 0, "open file"));
  EXPECT_TRUE(bytes == blob.bytes);
}

TEST_F(NodeCacheTest, FilesChangedUnderARunningServerAreNoticed) {
  TestBlob blob = PublishMiB(1, 4);
  auto server = NewServer();
  ExpectWhole(*server, blob);
  const std::string part = cache_.PartPath(blob.map.id);
  FlipByte(part, kMiB + 77);
  ExpectWhole(*server, blob);
  ASSERT_EQ(::truncate(part.c_str(), kMiB), 0);
  ExpectWhole(*server, blob);
  ASSERT_EQ(::unlink(part.c_str()), 0);
  ExpectWhole(*server, blob);
  ExpectWhole(*server, blob);
  EXPECT_TRUE(PathExists(part));
  SERVE_ASSERT_OK(server->Complete(blob.map.id));
  FlipByte(cache_.FullPath(blob.map.id), 5);
  ExpectWhole(*server, blob);
  EXPECT_FALSE(PathExists(cache_.FullPath(blob.map.id)));
  EXPECT_EQ(server->counters.errors, 0u);
}

TEST_F(NodeCacheTest, ErrorsOfTheDiskAreNeverErrorsOfReads) {
  TestBlob blob = PublishMiB(1, 4);
  for (const char* point :
       {"imagefs.cache.create=error:28", "imagefs.cache.write=error:5",
        "imagefs.cache.before_presence=error:28", "imagefs.cache.read=error:5",
        "imagefs.cache.prove=error:5", "imagefs.cache.evict.before_punch=error:5",
        "imagefs.cache.retire.before_unlink=error:5"}) {
    SetBudget(3 * kMiB);
    auto server = NewServer();
    SERVE_ASSERT_OK(ArmFailPoints(point));
    ExpectWhole(*server, blob);
    ExpectWhole(*server, blob);
    (void)server->cache.Prune({.keep_bytes = 0}, kNever);
    ExpectWhole(*server, blob);
    SERVE_ASSERT_OK(ArmFailPoints(""));
    ExpectWhole(*server, blob);
  }
}

TEST_F(NodeCacheTest, VerifyFindsWhatTheDiskHasChanged) {
  TestBlob part = PublishMiB(1, 2), full = PublishMiB(2, 2), lost = PublishMiB(3, 2);
  {
    auto server = NewServer();
    for (const TestBlob* blob : {&part, &full, &lost}) ExpectWhole(*server, *blob);
    SERVE_ASSERT_OK(server->Complete(full.map.id));
  }
  FlipByte(cache_.PartPath(part.map.id), 70'000);
  FlipByte(cache_.PartPath(part.map.id), kMiB + 1);
  FlipByte(cache_.FullPath(full.map.id), 100);
  ASSERT_EQ(::unlink(cache_.MapPath(lost.map.id).c_str()), 0);
  auto server = NewServer();
  std::map<BlobId, VerifiedBlob> found;
  SERVE_ASSERT_OK(server->cache.Verify(
      {},
      [&](const VerifiedBlob& one) {
        found[one.id] = one;
        return true;
      },
      kNever));
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[part.map.id].chunks_checked, 32u);
  EXPECT_EQ(found[part.map.id].chunks_dropped, 2u);
  EXPECT_EQ(found[full.map.id].chunks_dropped, 1u);
  EXPECT_NE(found[lost.map.id].error, "");
  EXPECT_FALSE(PathExists(cache_.FullPath(full.map.id)));
  ExpectWhole(*server, part);
  ExpectWhole(*server, full);
  // What nobody can read goes first of all when room is needed.
  ASSERT_TRUE(server->cache.Prune({.keep_bytes = 0}, kNever).ok());
  EXPECT_FALSE(PathExists(cache_.PartPath(lost.map.id)));
}

TEST_F(NodeCacheTest, ADirectoryIsUsedByOneServerAtATime) {
  TestBlob blob = PublishMiB(1, 2);
  auto first = NewServer();
  ExpectWhole(*first, blob);
  auto second = NewServer();
  ExpectWhole(*second, blob);
  EXPECT_EQ(second->counters.reads_from_cache, 0u);
  first.reset();
  EXPECT_TRUE(Eventually([&] {
    ExpectWhole(*second, blob);
    return second->counters.reads_from_cache > 0;
  }));
}

TEST_F(NodeCacheTest, FilesOfTheVersionBeforeGo) {
  const std::string old = cache_.DataDirectory() + "/" + std::string(64, 'a');
  for (const char* suffix : {".data", ".complete"}) {
    SERVE_ASSERT_OK(ReplaceFileDurably(old + suffix, "x"));
  }
  auto server = NewServer();
  EXPECT_TRUE(ListDirectory(cache_.DataDirectory())->empty());
}

class DirectoriesTest : public NodeCacheTest {
 protected:
  void SetUp() override {
    NodeCacheTest::SetUp();
    for (const char* name : {"/one", "/two"}) directories_.push_back({dir_->path() + name});
    SetBudget(200 * kMiB, {directories_[0].root, directories_[1].root});
  }
  static size_t FilesIn(const CacheLayout& cache) {
    Result<std::vector<std::string>> names = ListDirectory(cache.DataDirectory());
    return names.ok() ? names->size() : 0;
  }
  const CacheLayout& Used() const { return directories_[FilesIn(directories_[0]) > 0 ? 0 : 1]; }
  const CacheLayout& Other() const { return directories_[FilesIn(directories_[0]) > 0 ? 1 : 0]; }
  std::vector<CacheLayout> directories_;
};

TEST_F(DirectoriesTest, OneThatVanishesIsFetchedAgainElsewhere) {
  TestBlob blob = PublishMiB(1, 3);
  auto server = NewServer();
  ExpectWhole(*server, blob);
  const CacheLayout used = Used(), other = Other();
  ASSERT_EQ(FilesIn(other), 0u);
  EXPECT_EQ(FilesIn(cache_), 0u);  // the home was not named
  std::filesystem::remove_all(used.root);
  // A file in its place, so that it cannot simply be made again.
  SERVE_ASSERT_OK(ReplaceFileDurably(used.root, "in the way"));
  EXPECT_TRUE(Eventually([&] {
    ExpectWhole(*server, blob);
    return FilesIn(other) > 0;
  }));
  ExpectWhole(*server, blob);
  server.reset();
  server = NewServer();
  ExpectWhole(*server, blob);
  EXPECT_EQ(server->counters.fetches, 0u);
  // It comes back, empty, and is used again.
  ASSERT_EQ(::unlink(used.root.c_str()), 0);
  EXPECT_TRUE(Eventually([&] { return PathExists(used.LockPath()); }));
}

TEST_F(DirectoriesTest, OneThatWasMovedAwayServesWhatIsOpenAndTakesNothingMore) {
  TestBlob blob = PublishMiB(1, 12);
  auto server = NewServer();
  ExpectSame(*server, blob, 0, kMiB);
  const CacheLayout used = Used();
  ASSERT_EQ(std::rename(used.root.c_str(), (dir_->path() + "/away").c_str()), 0);
  ASSERT_TRUE(Eventually([&] { return PathExists(used.LockPath()); }));  // noticed, made anew
  const uint64_t fetches = server->counters.fetches;
  ExpectSame(*server, blob, 0, kMiB);
  EXPECT_EQ(server->counters.fetches, fetches);
  ExpectWhole(*server, blob);
  EXPECT_GT(FilesIn(directories_[0]) + FilesIn(directories_[1]), 0u);
  ExpectWhole(*server, blob);
}

TEST_F(DirectoriesTest, OneThatFailsIsLeftOut) {
  TestBlob blob = PublishMiB(1, 12);
  auto server = NewServer();
  ExpectSame(*server, blob, 0, kMiB);
  const CacheLayout used = Used(), other = Other();
  SERVE_ASSERT_OK(ArmFailPoints("imagefs.cache.write=error:30"));
  ExpectWhole(*server, blob);
  ExpectWhole(*server, blob);
  EXPECT_GT(FilesIn(other), 0u);
  EXPECT_GT(FilesIn(used), 0u);
  // Found again as one copy.
  server.reset();
  server = NewServer();
  ExpectWhole(*server, blob);
  EXPECT_EQ(FilesIn(used) * FilesIn(other), 0u);
}

}  // namespace
}  // namespace esker
