// Layers whose data is fetched while the container runs: keeper, blob server and EROFS together.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/io.h"
#include "imagefs/blob_map.h"
#include "imagefs/cache_layout.h"
#include "imagefs/pack.h"
#include "imagefs/store.h"
#include "testing/keeper_fixture.h"

namespace esker::keeper {
namespace {

class KeeperLazyTest : public KeeperFixture {
 protected:
  // Puts the layer's data into the store and its map into the cache, and forgets the local file.
  void PublishData() {
    Result<std::string> data = ReadFileToString(layer_.complete_path, 256 << 20);
    ASSERT_TRUE(data.ok());
    Result<std::unique_ptr<Store>> store = Store::Open(options_.store_directory);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    auto writer = PackWriter::Create(**store);
    ASSERT_TRUE(writer.ok());
    BlobChunks list;
    for (size_t at = 0; at < data->size(); at += kMaxChunkSize) {
      std::string_view bytes = std::string_view(*data).substr(at, kMaxChunkSize);
      ChunkRef ref{Sha256::Of(bytes), static_cast<uint32_t>(bytes.size())};
      ASSERT_TRUE(
          (*writer)
              ->AddChunk(ref, {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()})
              .ok());
      list.chunks.push_back(ref);
    }
    (*writer)->AddBlob(list);
    auto published = (*writer)->Finish();
    ASSERT_TRUE(published.ok()) << published.status().ToString();
    std::map<Digest, ChunkLocation> where;
    for (const PackChunk& chunk : published->footer.chunks) {
      where[chunk.ref.digest] = published->footer.Locate(published->id, chunk);
    }
    std::vector<ChunkLocation> locations;
    for (const ChunkRef& ref : list.chunks) locations.push_back(where.at(ref.digest));
    BlobMap map = BlobMap::Make(list, locations);
    CacheLayout cache;
    cache.root = options_.cache_directory;
    ASSERT_TRUE(cache.MakeDirectories().ok());
    ASSERT_TRUE(ReplaceFileDurably(cache.MapPath(map.id), map.Serialise()).ok());
    layer_.complete_path.clear();
    layer_.data_blob = map.id.ToHex();
  }
  void AddFilesToImage(const std::string& root) override {
    std::mt19937_64 random(7);
    std::string bytes(48 << 20, '\0');
    for (size_t i = 0; i < bytes.size(); i += 8) {
      uint64_t word = random();
      memcpy(bytes.data() + i, &word, 8);
    }
    sum_ = Checksum(bytes);
    Result<UniqueFd> file = OpenFile(root + "/big", O_CREAT | O_WRONLY, 0644);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(WriteFull(file->get(), bytes.data(), bytes.size()).ok());
  }
  // As in testing/test_init.c.
  static std::string Checksum(const std::string& bytes) {
    uint64_t sum = 14695981039346656037u;
    for (unsigned char c : bytes) sum = (sum ^ c) * 1099511628211u;
    return std::to_string(sum);
  }

  // All that a process ever wrote, to files and to the kernel as answers (proc_pid_io(5)).
  static uint64_t BytesWritten(pid_t pid) {
    Result<std::string> io = ReadFileToString("/proc/" + std::to_string(pid) + "/io");
    size_t at = io.ok() ? io->find("wchar: ") : std::string::npos;
    return at == std::string::npos ? 0 : std::strtoull(io->c_str() + at + 7, nullptr, 10);
  }

  std::string sum_;
};

TEST_F(KeeperLazyTest, TheBlobServerMayDieWhileAContainerReads) {
  PublishData();
  ASSERT_FALSE(HasFatalFailure());
  Result<Box> box = Create(Spec("lazy"));
  ASSERT_TRUE(box.ok()) << box.status().ToString();
  EXPECT_EQ(Ask(*box, "read /marker"), "the image's own root\n");
  std::atomic<bool> read = false;
  std::atomic<int> killed = 0;
  std::thread killer([&] {
    while (!read && killed < 4) {
      Result<pid_t> pid = client_->BlobServerPid();
      Result<Process> server = pid.ok() ? Process::Open(*pid) : pid.status();
      // In the middle of its work: it has served a chunk. Else one is being started, or reads.
      if (server.ok() && BytesWritten(*pid) > kMaxChunkSize) {
        if (server->Kill(SIGKILL).ok() && server->WaitExit(10'000).ok()) ++killed;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  });
  EXPECT_EQ(Ask(*box, "sum /big"), sum_);
  read = true;
  killer.join();
  EXPECT_GE(killed, 1);
}

// Nobody tells the keeper: it has to notice.
TEST_F(KeeperLazyTest, AServerThatHangsIsReplacedAndReadersGoOn) {
  PublishData();
  ASSERT_FALSE(HasFatalFailure());
  Result<Box> box = Create(Spec("hang"));
  ASSERT_TRUE(box.ok()) << box.status().ToString();
  Result<pid_t> pid = client_->BlobServerPid();
  ASSERT_TRUE(pid.ok());
  Result<Process> server = Process::Open(*pid);
  ASSERT_TRUE(server.ok() && server->Kill(SIGSTOP).ok());
  const int64_t start = Clock::System().MonotonicNanos();
  EXPECT_EQ(Ask(*box, "sum /big"), sum_);
  EXPECT_LT(Clock::System().MonotonicNanos() - start, 15'000'000'000);
  EXPECT_TRUE(server->WaitExit(10'000).ok());
  Result<pid_t> next = client_->BlobServerPid();
  ASSERT_TRUE(next.ok());
  EXPECT_NE(*next, *pid);
}

TEST_F(KeeperLazyTest, AnUpgradeRunsTheNewProgramAndReadersGoOn) {
  PublishData();
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_EQ(client_->UpgradeBlobServer(temp_->path() + "/missing").code(), Code::kNotFound);
  EXPECT_EQ(client_->UpgradeBlobServer("relative").code(), Code::kInvalidArgument);
  const std::string upgraded = temp_->path() + "/esker-imagefs-2";
  std::filesystem::copy(options_.binary_directory + "/esker-imagefs", upgraded);
  Result<Box> box = Create(Spec("upgrade"));
  ASSERT_TRUE(box.ok()) << box.status().ToString();
  Result<pid_t> before = client_->BlobServerPid();
  ASSERT_TRUE(before.ok());
  std::thread reader([&] { EXPECT_EQ(Ask(*box, "sum /big"), sum_); });
  EXPECT_TRUE(client_->UpgradeBlobServer(upgraded).ok());
  reader.join();
  Result<pid_t> after = client_->BlobServerPid();
  while (!after.ok() || *after == *before) after = client_->BlobServerPid();
  EXPECT_EQ(std::filesystem::read_symlink("/proc/" + std::to_string(*after) + "/exe"), upgraded);
}

}  // namespace
}  // namespace esker::keeper
