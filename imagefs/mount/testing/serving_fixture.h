// A blob server process behind a FUSE session that the test holds, as the keeper would; for tests.
// Needs root: a mount namespace of its own.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/process.h"
#include "imagefs/blob_server.h"
#include "imagefs/layer_mount.h"
#include "testing/layer_fixture.h"

namespace esker::testing {

inline int64_t NowMs() { return Clock::System().MonotonicNanos() / 1'000'000; }

inline size_t CountMounts() {
  std::ifstream in("/proc/self/mounts");
  return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(in), {}, '\n'));
}

inline size_t CountFds() { return ListDirectory("/proc/self/fd")->size(); }

// Plays the keeper: holds the session and the mounts, starts servers.
class ServingTest : public LayerTest {
 protected:
  static void SetUpTestSuite() {
    if (::geteuid() != 0 || ::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      reason_ = "needs CAP_SYS_ADMIN for a mount namespace";
    } else if (!PathExists("/dev/fuse")) {
      reason_ = "needs /dev/fuse";
    }
  }
  void SetUp() override {
    if (!reason_.empty()) GTEST_SKIP() << reason_;
    // The first use of some parts of libc keeps a descriptor; count after one.
    mounts_before_ = CountMounts();
    fds_before_ = CountFds();
    LayerTest::SetUp();
    mountpoint_ = dir_->path() + "/fuse";
    LAYER_ASSERT_OK(MakeDirectories(mountpoint_));
    Result<UniqueFd> fuse = MountBlobFs(mountpoint_);
    ASSERT_TRUE(fuse.ok()) << fuse.status().ToString();
    fuse_ = std::move(*fuse);
  }
  void TearDown() override {
    if (!reason_.empty()) return;
    EXPECT_EQ(::umount2(mountpoint_.c_str(), 0), 0) << std::strerror(errno);
    if (server_.valid()) {
      // The end of the session ends the server.
      EXPECT_TRUE(server_.WaitExit(10'000).ok());
      Result<int> status = server_.Reap();
      ASSERT_TRUE(status.ok());
      EXPECT_EQ(*status, 0);
    }
    server_ = Process();
    fuse_.reset();
    layers_.reset();
    store_.reset();
    dir_.reset();
    EXPECT_EQ(CountMounts(), mounts_before_);
    EXPECT_EQ(CountFds(), fds_before_);
  }

  struct ServerOptions {
    int retry_ms = 20'000;
    std::string store;        // "": store_'s own path
    std::string fail_points;  // ESKER_FAILPOINTS
  };
  void StartServer(int retry_ms = 20'000) { StartServer(ServerOptions{.retry_ms = retry_ms}); }
  void StartServer(const ServerOptions& how) {
    SpawnOptions options;
    options.argv = {ESKER_IMAGEFS,
                    "--store",
                    how.store.empty() ? store_->path() : how.store,
                    "--cache",
                    cache_.root,
                    "--state",
                    dir_->path() + "/session",
                    "--retry-ms",
                    std::to_string(how.retry_ms)};
    if (!how.fail_points.empty()) options.env = {"ESKER_FAILPOINTS=" + how.fail_points};
    options.pass_fds = {{fuse_.get(), 3}};
    Result<Process> server = Process::Spawn(options);
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
  }
  void KillServer(int signal) {
    LAYER_ASSERT_OK(server_.Kill(signal));
    LAYER_ASSERT_OK(server_.WaitExit(10'000));
    ASSERT_TRUE(server_.Reap().ok());
    server_ = Process();
  }
  UniqueFd MountServed(const ImageLayer& layer) {
    Result<LocalLayer> local = layers_->Ensure(layer);
    EXPECT_TRUE(local.ok()) << local.status().ToString();
    Result<LayerMount> mount =
        MountLayer({local->metadata_path, mountpoint_ + "/" + local->data_blob});
    EXPECT_TRUE(mount.ok()) << mount.status().ToString();
    if (!mount.ok()) return UniqueFd();
    EXPECT_TRUE(mount->file_backed);
    return std::move(mount->mount);
  }
  static Result<std::string> ReadAt(int dirfd, const std::string& name, uint64_t offset,
                                    size_t size) {
    ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFileAt(dirfd, name, O_RDONLY | O_CLOEXEC));
    // Out of EROFS's own cache, so that it asks below.
    (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
    (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM);
    std::string out(size, '\0');
    ESKER_RETURN_IF_ERROR(PReadExact(fd.get(), out.data(), size, offset, name));
    return out;
  }
  void ExpectAllFiles(int mount) {
    for (const auto& [name, content] : files_) {
      Result<std::string> got = ReadAt(mount, name, 0, content.size());
      ASSERT_TRUE(got.ok()) << name << ": " << got.status().ToString();
      EXPECT_TRUE(*got == content) << name;
    }
  }
  // Reads at random and compares, until told to stop.
  struct Readers {
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> reads{0}, failed{0}, wrong{0};
    std::atomic<int64_t> longest_ms{0};
    std::vector<std::thread> threads;
    void Join() {
      stop = true;
      for (std::thread& thread : threads) thread.join();
      threads.clear();
    }
  };
  void StartReaders(Readers& readers, int mount, int count) {
    std::vector<const std::pair<const std::string, std::string>*> files;
    for (const auto& file : files_) files.push_back(&file);
    for (int t = 0; t < count; ++t) {
      readers.threads.emplace_back([&readers, mount, t, files] {
        std::mt19937_64 random(t);
        while (!readers.stop) {
          const auto& [name, content] = *files[random() % files.size()];
          size_t size = std::min<size_t>(content.size(), 1 + random() % 300'000);
          uint64_t at = random() % (content.size() - size + 1);
          int64_t start = NowMs();
          Result<std::string> got = ReadAt(mount, name, at, size);
          int64_t took = NowMs() - start;
          for (int64_t before = readers.longest_ms;
               took > before && !readers.longest_ms.compare_exchange_weak(before, took);) {
          }
          ++readers.reads;
          if (!got.ok()) {
            ++readers.failed;
          } else if (content.compare(at, size, *got) != 0) {
            ++readers.wrong;
          }
        }
      });
    }
  }
  template <typename F>
  static bool Eventually(F condition, int64_t timeout_ms = 20'000) {
    const int64_t deadline = NowMs() + timeout_ms;
    while (!condition()) {
      if (NowMs() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  static inline std::string reason_;
  size_t mounts_before_ = 0, fds_before_ = 0;
  std::string mountpoint_;
  UniqueFd fuse_;
  Process server_;
};

}  // namespace esker::testing
