#include "blob_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <latch>
#include <thread>

#include "base/failpoint.h"
#include "blob_registry.h"
#include "testing/cache_server.h"

namespace esker {
namespace {

using Server = testing::CacheServer;
using testing::TestBlob;

class BlobReaderTest : public testing::BlobTest {
 protected:
  std::unique_ptr<Server> NewServer() { return std::make_unique<Server>(cache_.root, StorePath()); }
  void ExpectSame(Server& server, const TestBlob& blob, uint64_t offset, size_t size) {
    Result<std::string> got = server.Read(blob.map.id, offset, size);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_TRUE(*got == blob.bytes.substr(offset, size)) << offset << "+" << size;
  }
  void ExpectWhole(Server& server, const TestBlob& blob) {
    for (uint64_t at = 0; at < blob.bytes.size(); at += kMaxChunkSize) {
      ExpectSame(server, blob, at, std::min<size_t>(kMaxChunkSize, blob.bytes.size() - at));
    }
  }
  static void FlipByte(const std::string& path, uint64_t offset) {
    Result<UniqueFd> fd = OpenFile(path, O_RDWR | O_CLOEXEC);
    ASSERT_TRUE(fd.ok()) << fd.status().ToString();
    char byte;
    SERVE_ASSERT_OK(PReadExact(fd->get(), &byte, 1, offset, path));
    byte = static_cast<char>(byte ^ 0x40);
    SERVE_ASSERT_OK(PWriteFull(fd->get(), &byte, 1, offset));
  }
  void TearDown() override { SERVE_ASSERT_OK(ArmFailPoints("")); }
};

TEST_F(BlobReaderTest, AnswersAnyRangeFromTheStoreAndThenFromTheCache) {
  TestBlob blob = Publish(1, 120);
  auto server = NewServer();
  std::mt19937_64 random(7);
  for (int i = 0; i < 400; ++i) {
    size_t size = 1 + random() % (i % 4 == 0 ? 700'000 : 9000);
    size = std::min(size, blob.bytes.size());
    ExpectSame(*server, blob, random() % (blob.bytes.size() - size + 1), size);
  }
  ExpectWhole(*server, blob);
  const uint64_t fetched = server->counters.fetches;
  ExpectWhole(*server, blob);
  EXPECT_EQ(server->counters.fetches, fetched);
  // The next server proves what is there and fetches nothing.
  server.reset();
  auto next = NewServer();
  ExpectWhole(*next, blob);
  EXPECT_EQ(next->counters.fetches, 0u);
}

TEST_F(BlobReaderTest, ReadsNeighboursTogether) {
  TestBlob blob = testing::PublishBlob(*store_, 3, std::vector<uint32_t>(256, 8192));
  PutMap(blob.map);
  auto server = NewServer();
  ExpectSame(*server, blob, 0, 4096);
  EXPECT_EQ(server->counters.fetches, 1u);
  ExpectWhole(*server, blob);
  EXPECT_LE(server->counters.fetches, blob.bytes.size() / kMaxGroupStored + 2);
}

TEST_F(BlobReaderTest, ManyReadersOfTheSameColdRangeFetchItOnce) {
  TestBlob blob = testing::PublishBlob(*store_, 4, std::vector<uint32_t>(64, 100'000));
  PutMap(blob.map);
  auto server = NewServer();
  const auto groups = BlobLayout(blob.map).groups().size();
  constexpr int kReaders = 16;
  std::latch start(kReaders);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kReaders; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      std::mt19937_64 random(t);
      for (int i = 0; i < 40; ++i) {
        size_t size = 1 + random() % 900'000;
        uint64_t at = random() % (blob.bytes.size() - size);
        Result<std::string> got = server->Read(blob.map.id, at, size);
        if (!got.ok() || *got != blob.bytes.substr(at, size)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(server->counters.fetches, groups);
}

TEST_F(BlobReaderTest, WrongBytesInAPackAreAnErrorForTheirChunkOnlyAndHealWhenThePackDoes) {
  TestBlob blob = testing::PublishBlob(*store_, 5, std::vector<uint32_t>(8, 300'000));
  PutMap(blob.map);
  const BlobMap::Entry& bad = blob.map.entries[2];  // raw: random bytes do not shrink
  ASSERT_EQ(bad.location.codec, kCodecRaw);
  ASSERT_EQ(::chmod(PackFile(blob).c_str(), 0600), 0);
  FlipByte(PackFile(blob), bad.location.frame_offset + 1000);
  auto server = NewServer();
  for (int i = 0; i < 2; ++i) {
    Result<std::string> got = server->Read(blob.map.id, bad.blob_offset, 4096);
    EXPECT_EQ(got.status().code(), Code::kDataLoss) << got.status().ToString();
  }
  ExpectSame(*server, blob, 0, bad.blob_offset);
  ExpectSame(*server, blob, bad.blob_offset + 303'104, 4096);
  FlipByte(PackFile(blob), bad.location.frame_offset + 1000);
  ExpectWhole(*server, blob);
}

TEST_F(BlobReaderTest, DamagedCompressedFramesAreErrors) {
  TestBlob blob = testing::PublishBlob(*store_, 6, std::vector<uint32_t>(2, 300'000));
  PutMap(blob.map);
  const BlobMap::Entry& bad = blob.map.entries[1];
  ASSERT_EQ(bad.location.codec, kCodecZstd);
  ASSERT_EQ(::chmod(PackFile(blob).c_str(), 0600), 0);
  for (uint32_t at = 0; at < bad.location.frame_stored; at += 997) {
    FlipByte(PackFile(blob), bad.location.frame_offset + at);
    auto server = NewServer();
    Result<std::string> got = server->Read(blob.map.id, bad.blob_offset, 300'000);
    if (got.ok()) {
      EXPECT_TRUE(*got == blob.bytes.substr(bad.blob_offset, 300'000));
      std::filesystem::remove_all(cache_.DataDirectory());
      SERVE_ASSERT_OK(cache_.MakeDirectories());
    } else {
      EXPECT_EQ(got.status().code(), Code::kDataLoss);
    }
    FlipByte(PackFile(blob), bad.location.frame_offset + at);
  }
}

TEST_F(BlobReaderTest, AShortPackServesWhatItHas) {
  TestBlob blob = testing::PublishBlob(*store_, 8, std::vector<uint32_t>(6, 200'000));
  PutMap(blob.map);
  const BlobMap::Entry& cut = blob.map.entries[4];
  std::filesystem::copy_file(PackFile(blob), dir_->path() + "/whole");
  ASSERT_EQ(::truncate(PackFile(blob).c_str(), static_cast<off_t>(cut.location.frame_offset + 5)),
            0);
  auto server = NewServer();
  ExpectSame(*server, blob, 0, cut.blob_offset);
  EXPECT_EQ(server->Read(blob.map.id, cut.blob_offset, 10).status().code(), Code::kDataLoss);
  std::filesystem::copy_file(dir_->path() + "/whole", PackFile(blob),
                             std::filesystem::copy_options::overwrite_existing);
  ExpectWhole(*server, blob);
}

TEST_F(BlobReaderTest, AMissingPackFailsAfterTheDeadlineAndWorksWhenItIsBack) {
  TestBlob blob = Publish(9, 10);
  const std::string away = dir_->path() + "/away";
  ASSERT_EQ(std::rename(PackFile(blob).c_str(), away.c_str()), 0);
  auto server = NewServer();
  const int64_t start = Clock::System().MonotonicNanos();
  Result<std::string> got = server->Read(blob.map.id, 0, 100, 300);
  EXPECT_EQ(got.status().code(), Code::kNotFound) << got.status().ToString();
  const int64_t took_ms = (Clock::System().MonotonicNanos() - start) / 1'000'000;
  EXPECT_LE(took_ms, 300 + 200);
  EXPECT_GT(server->counters.store_retries, 0u);
  ASSERT_EQ(std::rename(away.c_str(), PackFile(blob).c_str()), 0);
  ExpectWhole(*server, blob);
}

TEST_F(BlobReaderTest, AReadWaitsForAStoreThatComesBack) {
  TestBlob blob = Publish(10, 10);
  const std::string away = dir_->path() + "/away";
  ASSERT_EQ(std::rename(StorePath().c_str(), away.c_str()), 0);
  auto server = NewServer();
  std::thread back([&] {
    while (server->counters.store_retries == 0) std::this_thread::yield();
    ASSERT_EQ(std::rename(away.c_str(), StorePath().c_str()), 0);
  });
  ExpectSame(*server, blob, 0, 5000);
  back.join();
}

TEST_F(BlobReaderTest, StopEndsWaitingReads) {
  TestBlob blob = Publish(11, 4);
  ASSERT_EQ(std::rename(PackFile(blob).c_str(), (dir_->path() + "/away").c_str()), 0);
  auto server = NewServer();
  std::thread stop([&] {
    while (server->counters.store_retries == 0) std::this_thread::yield();
    server->reader.Stop();
  });
  Result<std::string> got = server->Read(blob.map.id, 0, 100, 60'000);
  EXPECT_EQ(got.status().code(), Code::kCancelled);
  stop.join();
}

TEST_F(BlobReaderTest, MovedChunksAreFoundByANewMap) {
  TestBlob blob = Publish(12, 20);
  auto server = NewServer();
  ASSERT_TRUE(server->registry.Find(blob.map.id).ok());
  // Compaction: the same chunks in another pack, in another order.
  auto writer = PackWriter::Create(*store_);
  ASSERT_TRUE(writer.ok());
  for (size_t i = blob.map.entries.size(); i-- > 0;) {
    const BlobMap::Entry& e = blob.map.entries[i];
    SERVE_ASSERT_OK((*writer)->AddChunk(
        e.chunk,
        {reinterpret_cast<const uint8_t*>(blob.bytes.data()) + e.blob_offset, e.chunk.length}));
  }
  auto published = (*writer)->Finish();
  ASSERT_TRUE(published.ok()) << published.status().ToString();
  ASSERT_EQ(::unlink(PackFile(blob).c_str()), 0);
  std::map<Digest, ChunkLocation> where;
  for (const PackChunk& chunk : published->footer.chunks) {
    where[chunk.ref.digest] = published->footer.Locate(published->id, chunk);
  }
  BlobMap moved = blob.map;
  moved.generation = 1;
  for (BlobMap::Entry& e : moved.entries) e.location = where.at(e.chunk.digest);
  PutMap(moved);
  ExpectWhole(*server, blob);
}

TEST_F(BlobReaderTest, ADamagedCacheFileIsDroppedAndFetchedAgain) {
  TestBlob blob = testing::PublishBlob(*store_, 13, std::vector<uint32_t>(4, 100'000));
  PutMap(blob.map);
  { ExpectWhole(*NewServer(), blob); }
  FlipByte(cache_.PartPath(blob.map.id), blob.map.entries[1].blob_offset + 7);
  // A gap says nothing about the file, so it is not believed.
  FlipByte(cache_.PartPath(blob.map.id), blob.map.entries[2].blob_offset + 100'001);
  auto server = NewServer();
  ExpectWhole(*server, blob);
  EXPECT_EQ(server->counters.fetches, 1u);
}

TEST_F(BlobReaderTest, AnOldOrCutOrForeignPresenceFileDoesNoHarm) {
  TestBlob blob = Publish(14, 30);
  { ExpectWhole(*NewServer(), blob); }
  const std::string path = cache_.PresencePath(blob.map.id);
  for (const std::string& bytes : {std::string(), std::string(3, 'x'), std::string(64, '\xff'),
                                   std::string(1 << 20, '\xff')}) {
    SERVE_ASSERT_OK(ReplaceFileDurably(path, bytes));
    ExpectWhole(*NewServer(), blob);
  }
  // All bits set over an empty data file.
  { ExpectWhole(*NewServer(), blob); }
  ASSERT_EQ(::truncate(cache_.PartPath(blob.map.id).c_str(), 0), 0);
  ASSERT_EQ(::truncate(cache_.PartPath(blob.map.id).c_str(), static_cast<off_t>(blob.bytes.size())),
            0);
  ExpectWhole(*NewServer(), blob);
}

TEST_F(BlobReaderTest, ACacheThatCannotBeWrittenMeansUncachedReads) {
  TestBlob blob = Publish(15, 40);
  SERVE_ASSERT_OK(ArmFailPoints("imagefs.cache.write=error:28"));
  auto server = NewServer();
  ExpectWhole(*server, blob);
  ExpectWhole(*server, blob);
  EXPECT_EQ(server->counters.reads_from_cache, 0u);
  EXPECT_GT(server->cache.Stats().write_errors, 0u);
  EXPECT_EQ(server->counters.errors, 0u);
}

TEST_F(BlobReaderTest, ACacheDirectoryThatIsGoneMeansUncachedReads) {
  TestBlob blob = Publish(16, 10);
  std::filesystem::remove_all(cache_.DataDirectory());
  auto server = NewServer();
  ExpectWhole(*server, blob);
}

TEST_F(BlobReaderTest, CompletesOnlyWhatIsWholeAndRight) {
  TestBlob blob = Publish(17, 50);
  auto server = NewServer();
  ExpectWhole(*server, blob);
  auto served = server->registry.Find(blob.map.id);
  ASSERT_TRUE(served.ok());
  ASSERT_TRUE((*served)->TakeCompletion());
  EXPECT_FALSE((*served)->TakeCompletion());
  const uint64_t size = blob.bytes.size();
  EXPECT_FALSE(IsBlobComplete(cache_, blob.map.id, size));
  // The disk changes under us before it is verified: a chunk, then a gap.
  FlipByte(cache_.PartPath(blob.map.id), blob.map.entries[3].blob_offset);
  std::atomic<bool> stop{false};
  auto layout = (*served)->layout();
  EXPECT_EQ((*served)->cache_file().Complete(*layout, stop).code(), Code::kDataLoss);
  EXPECT_FALSE((*served)->cache_file().AllPresent());
  EXPECT_FALSE(IsBlobComplete(cache_, blob.map.id, size));
  ExpectWhole(*server, blob);
  ASSERT_TRUE((*served)->cache_file().AllPresent());
  SERVE_ASSERT_OK((*served)->cache_file().Complete(*layout, stop));
  EXPECT_TRUE(IsBlobComplete(cache_, blob.map.id, size));
  EXPECT_FALSE(IsBlobComplete(cache_, blob.map.id, size + 4096));
  Result<std::string> file = ReadFileToString(cache_.FullPath(blob.map.id), 1u << 30);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(*file == blob.bytes);

  // Found damaged later: no longer called complete, and healed.
  FlipByte(cache_.FullPath(blob.map.id), blob.map.entries[3].blob_offset);
  server.reset();
  served = NotFoundError("let go of");
  auto next = NewServer();
  ExpectWhole(*next, blob);
  EXPECT_FALSE(IsBlobComplete(cache_, blob.map.id, size));
}

TEST_F(BlobReaderTest, DamagedAndForeignMapsAreRefused) {
  TestBlob blob = Publish(18, 5), other = Publish(19, 5);
  FlipByte(cache_.MapPath(blob.map.id), 60);
  auto server = NewServer();
  EXPECT_EQ(server->Read(blob.map.id, 0, 10).status().code(), Code::kDataLoss);
  SERVE_ASSERT_OK(ReplaceFileDurably(cache_.MapPath(blob.map.id), other.map.Serialise()));
  EXPECT_EQ(server->Read(blob.map.id, 0, 10).status().code(), Code::kDataLoss);
  ExpectWhole(*server, other);
  // A map that comes later is found.
  PutMap(blob.map);
  ExpectWhole(*server, blob);
}

TEST_F(BlobReaderTest, RegistryFindsNodesItHasNotSeenAndStaysBounded) {
  std::vector<TestBlob> blobs;
  for (int i = 0; i < 6; ++i) blobs.push_back(Publish(100 + i, 3));
  NodeCache cache(cache_.root, Clock::System());
  Counters counters;
  BlobRegistry registry(cache, counters, {.blobs = 2, .memory_bytes = 1u << 20});
  for (int round = 0; round < 2; ++round) {
    for (const TestBlob& blob : blobs) {
      auto found = registry.FindNode(NodeOf(blob.map.id));
      ASSERT_TRUE(found.ok()) << found.status().ToString();
      EXPECT_EQ((*found)->id(), blob.map.id);
    }
  }
  EXPECT_EQ(registry.FindNode(12345).status().code(), Code::kNotFound);
  EXPECT_EQ(registry.List().size(), blobs.size());
}

}  // namespace
}  // namespace esker
