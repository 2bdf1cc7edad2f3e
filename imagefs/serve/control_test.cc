#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <thread>

#include "base/clock.h"
#include "blob_files.h"
#include "control_server.h"
#include "imagefs/blob_server_client.h"
#include "testing/blob_fixture.h"

namespace esker {
namespace {

using testing::TestBlob;

class ControlTest : public testing::BlobTest {
 protected:
  void SetUp() override {
    BlobTest::SetUp();
    socket_ = cache_.root + "/control.sock";
    client_ = BlobServerClient::Create(socket_);
  }
  // A server's life, as RunBlobServer lives it, without FUSE.
  struct Server {
    std::unique_ptr<BlobFiles> files;
    std::unique_ptr<ControlServer> control;
    ~Server() {
      control.reset();
      if (files != nullptr) files->Stop();
    }
  };
  std::unique_ptr<Server> StartServer(CacheControl* cache = nullptr) {
    auto server = std::make_unique<Server>();
    BlobFilesOptions options;
    options.store_directory = StorePath();
    options.cache_directory = cache_.root;
    server->files = std::make_unique<BlobFiles>(options);
    auto control = ControlServer::Start(socket_, *server->files, cache);
    EXPECT_TRUE(control.ok()) << control.status().ToString();
    if (control.ok()) server->control = std::move(*control);
    return server;
  }
  template <typename F>
  static bool Eventually(F condition) {
    const int64_t deadline = Clock::System().MonotonicNanos() + 20'000'000'000;
    while (!condition()) {
      if (Clock::System().MonotonicNanos() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }
  uint64_t Prefetched() {
    Result<BlobServerStats> stats = client_->GetStats(0);
    EXPECT_TRUE(stats.ok()) << stats.status().ToString();
    return stats.ok() && stats->prefetches_running == 0 ? stats->prefetched_bytes : 0;
  }

  std::string socket_;
  std::unique_ptr<BlobServerClient> client_;
};

TEST_F(ControlTest, NobodyThereIsUnavailableAtOnceAndTheNextServerIsFound) {
  const int64_t start = Clock::System().MonotonicNanos();
  EXPECT_EQ(client_->GetStats(1).status().code(), Code::kUnavailable);
  EXPECT_LT(Clock::System().MonotonicNanos() - start, 1'000'000'000);
  auto server = StartServer();
  EXPECT_TRUE(Eventually([&] { return client_->GetStats(1).ok(); }));
  server.reset();
  EXPECT_EQ(client_->GetStats(1).status().code(), Code::kUnavailable);
  server = StartServer();
  EXPECT_TRUE(Eventually([&] { return client_->GetStats(1).ok(); }));
}

TEST_F(ControlTest, ADirectoryThatIsNotThereIsUnavailableToo) {
  auto client = BlobServerClient::Create(cache_.root + "/missing/control.sock");
  EXPECT_EQ(client->GetStats(1).status().code(), Code::kUnavailable);
}

TEST_F(ControlTest, OneThatListensAndSaysNothingIsGivenUp) {
  UniqueFd silent(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(socket_.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, socket_.c_str(), socket_.size());
  ASSERT_EQ(::bind(silent.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(silent.get(), 8), 0);
  const int64_t start = Clock::System().MonotonicNanos();
  const Code code = client_->GetStats(1).status().code();
  EXPECT_TRUE(code == Code::kDeadlineExceeded || code == Code::kUnavailable) << CodeName(code);
  EXPECT_LT(Clock::System().MonotonicNanos() - start, 10'000'000'000);
}

TEST_F(ControlTest, OnlyTheOwnerMayConnect) {
  auto server = StartServer();
  struct stat status;
  ASSERT_EQ(::stat(socket_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(ControlTest, APrefetchBringsExactlyWhatIsWantedAndNoMore) {
  TestBlob blob = testing::PublishBlob(*store_, 21, std::vector<uint32_t>(40, 100'000));
  PutMap(blob.map);
  auto server = StartServer();
  auto bytes = client_->Prefetch("start", {{blob.map.id, {{3, 2}, {30, 1}}}});
  ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
  EXPECT_EQ(*bytes, 300'000u);
  ASSERT_TRUE(Eventually([&] { return Prefetched() == 300'000; }));
  auto served = server->files->registry().Find(blob.map.id);
  ASSERT_TRUE(served.ok());
  for (uint32_t i = 0; i < 40; ++i) {
    EXPECT_EQ((*served)->cache_file().Has(i), i == 3 || i == 4 || i == 30) << i;
  }
  // What is here is not fetched again.
  bytes = client_->Prefetch("start", {{blob.map.id, {{3, 2}}}});
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(*bytes, 0u);
}

TEST_F(ControlTest, RangesThatLieAndBlobsThatNobodyKnowsAreIgnored) {
  TestBlob blob = testing::PublishBlob(*store_, 22, std::vector<uint32_t>(5, 10'000));
  PutMap(blob.map);
  auto server = StartServer();
  auto bytes = client_->Prefetch(
      "lies", {{BlobId(), {{0, 1}}},
               {blob.map.id, {{4, UINT32_MAX}, {UINT32_MAX, UINT32_MAX}, {4, 1}, {9, 9}}}});
  ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
  EXPECT_TRUE(Eventually([&] { return Prefetched() == 10'000; }));
  EXPECT_EQ(client_->Prefetch("", {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(client_->StartRecording(std::string(1000, 'x'), {}).code(), Code::kInvalidArgument);
}

TEST_F(ControlTest, APrefetchAgainstAStoreThatIsGoneEndsAndHarmsNobody) {
  TestBlob blob = testing::PublishBlob(*store_, 23, std::vector<uint32_t>(5, 10'000));
  PutMap(blob.map);
  const std::string packs = StorePath() + "/packs";
  ASSERT_EQ(::rename(packs.c_str(), (packs + ".away").c_str()), 0);
  auto server = StartServer();
  ASSERT_TRUE(client_->Prefetch("gone", {{blob.map.id, {{0, 5}}}}).ok());
  EXPECT_TRUE(Eventually([&] {
    auto stats = client_->GetStats(0);
    return stats.ok() && stats->prefetches_running == 0;
  }));
  ASSERT_EQ(::rename((packs + ".away").c_str(), packs.c_str()), 0);
  ASSERT_TRUE(client_->Prefetch("back", {{blob.map.id, {{0, 5}}}}).ok());
  EXPECT_TRUE(Eventually([&] { return Prefetched() == 50'000; }));
  EXPECT_TRUE(client_->CancelPrefetch("never was").ok());
}

TEST_F(ControlTest, ARecordingHasWhatWasReadSinceItsStart) {
  TestBlob blob = testing::PublishBlob(*store_, 24, std::vector<uint32_t>(10, 8192));
  PutMap(blob.map);
  auto server = StartServer();
  SERVE_ASSERT_OK(client_->StartRecording("r", {blob.map.id, BlobId()}));
  auto served = server->files->registry().Find(blob.map.id);
  ASSERT_TRUE(served.ok());
  (*served)->NoteRead(8192, 4096, Clock::System().MonotonicNanos());
  (*served)->NoteRead(5 * 8192 + 4096, 8192, Clock::System().MonotonicNanos());
  auto recording = client_->TakeRecording("r", false);
  ASSERT_TRUE(recording.ok()) << recording.status().ToString();
  ASSERT_EQ(recording->touched.size(), 1u);
  EXPECT_EQ(recording->touched[0].blob, blob.map.id);
  EXPECT_EQ(recording->touched[0].ranges, (std::vector<ChunkRange>{{1, 1}, {5, 2}}));
  EXPECT_EQ(recording->touched_bytes, 3 * 8192u);
  EXPECT_LT(recording->quiet_ms, 20'000u);
  ASSERT_TRUE(client_->TakeRecording("r", true).ok());
  EXPECT_EQ(client_->TakeRecording("r", true).status().code(), Code::kNotFound);
}

TEST_F(ControlTest, WithoutACacheToManageItsCallsAreUnimplemented) {
  auto server = StartServer();
  EXPECT_EQ(client_->ListCache([](const CachedBlob&) { return true; }).code(),
            Code::kUnimplemented);
  EXPECT_EQ(client_->PruneCache({}).status().code(), Code::kUnimplemented);
  EXPECT_EQ(client_->VerifyCache({}, [](const VerifiedBlob&) { return true; }).code(),
            Code::kUnimplemented);
}

// Answers every call with something that can be told apart.
class FixedCache : public CacheControl {
 public:
  CacheStats Stats() override { return {1, 2, 3, 4, 5}; }
  Status List(const std::function<bool(const CachedBlob&)>& each) override {
    for (uint64_t i = 0; i < 3; ++i) {
      if (!each({BlobId(), 10 + i, i, i == 2, i == 1, 77, "/cache"})) return OkStatus();
    }
    return OkStatus();
  }
  Result<PruneReport> Prune(const PruneRequest& request, const std::function<bool()>&) override {
    return PruneReport{request.keep_bytes, static_cast<uint64_t>(request.unused_for_ms),
                       request.dry_run ? 1u : 0u};
  }
  Status Verify(const std::vector<BlobId>& blobs,
                const std::function<bool(const VerifiedBlob&)>& each,
                const std::function<bool()>&) override {
    for (const BlobId& id : blobs) (void)each({id, 5, 1, "why"});
    return DataLossError("in the end");
  }
};

TEST_F(ControlTest, WhatTheCacheSaysArrivesAsItWasSaid) {
  FixedCache cache;
  auto server = StartServer(&cache);
  auto stats = client_->GetStats(5);
  ASSERT_TRUE(stats.ok()) << stats.status().ToString();
  ASSERT_TRUE(stats->cache.has_value());
  EXPECT_EQ(stats->cache->evictions, 4u);
  std::vector<CachedBlob> listed;
  SERVE_ASSERT_OK(client_->ListCache([&](const CachedBlob& blob) {
    listed.push_back(blob);
    return listed.size() < 2;
  }));
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_TRUE(listed[1].mounted);
  EXPECT_EQ(listed[1].directory, "/cache");
  auto report = client_->PruneCache({9, 8, true});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->freed_bytes, 9u);
  EXPECT_EQ(report->kept_bytes, 8u);
  EXPECT_EQ(report->blobs_touched, 1u);
  std::vector<std::string> errors;
  Status verified = client_->VerifyCache({BlobId()}, [&](const VerifiedBlob& blob) {
    errors.push_back(blob.error);
    return true;
  });
  EXPECT_EQ(verified.code(), Code::kDataLoss);
  EXPECT_EQ(errors, std::vector<std::string>{"why"});
}

}  // namespace
}  // namespace esker
