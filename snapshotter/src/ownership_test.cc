// One index per store: signs of life, refusal, take-over.
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "testing/index_fixture.h"

namespace esker::testing {
namespace {

constexpr int64_t kMs = 1'000'000;

class OwnershipTest : public IndexFixture {
 protected:
  IndexOptions OptionsOf(const std::string& who, bool take_over = false) {
    IndexOptions options = Options();
    options.db_directory = directory_->path() + "/" + who;
    options.claimant = who;
    options.clock = nullptr;
    options.beat_ns = 50 * kMs;
    options.staleness_ns = 200 * kMs;
    options.take_over = take_over;
    return options;
  }
  static bool Soon(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
};

TEST_F(OwnershipTest, ALivingOwnerKeepsAnotherIndexOut) {
  index_.reset();
  auto first = Must(Index::Open(*store_, OptionsOf("first")));
  Status refused = Index::Open(*store_, OptionsOf("second")).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("first"));
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("--take-over"));
  EXPECT_OK(first->CheckServing());
  first.reset();
  // Released, so at once.
  EXPECT_OK(Index::Open(*store_, OptionsOf("second")).status());
}

TEST_F(OwnershipTest, ATakeOverFencesTheFirst) {
  index_.reset();
  auto first = Must(Index::Open(*store_, OptionsOf("first")));
  const auto began = std::chrono::steady_clock::now();
  auto second = Must(Index::Open(*store_, OptionsOf("second", /*take_over=*/true)));
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(200));
  EXPECT_TRUE(Soon([&] { return !first->CheckServing().ok(); }));
  EXPECT_THAT(first->CheckServing().message(), ::testing::HasSubstr("second"));
  PackWriter::Published pack = WritePack(*store_, {.chunks = {"a"}, .blobs = {{"a"}}});
  EXPECT_EQ(first->RegisterPack(pack).code(), Code::kFailedPrecondition);
  EXPECT_EQ(first->DeleteTag("app:1").code(), Code::kFailedPrecondition);
  first->EnableGc();
  EXPECT_EQ(first->CollectGarbage({}).status().code(), Code::kFailedPrecondition);
  EXPECT_OK(second->RegisterPack(pack));
  EXPECT_OK(second->CheckServing());
}

TEST_F(OwnershipTest, ADeadOwnerIsFollowedAfterAWhile) {
  index_.reset();
  IndexOptions next_options = OptionsOf("next");
  next_options.staleness_ns = 2'000 * kMs;
  const uint64_t epoch = Must(store_->ClaimOwnership("dead"));
  Must(store_->BeatOwner(epoch, 1));
  Must(store_->BeatOwner(epoch, 2));
  auto owner = Must(store_->FindOwner());
  ASSERT_TRUE(owner && owner->silent_seconds);
  EXPECT_EQ(owner->claimant, "dead");
  EXPECT_EQ(Index::Open(*store_, next_options).status().code(), Code::kFailedPrecondition);
  std::unique_ptr<Index> next;
  ASSERT_TRUE(Soon([&] {
    Result<std::unique_ptr<Index>> opened = Index::Open(*store_, next_options);
    if (opened.ok()) next = std::move(*opened);
    return next != nullptr;
  }));
  EXPECT_EQ(Must(store_->ListAliveOwners()).size(), 1u) << "what the dead one left is gone";
}

TEST_F(OwnershipTest, TheSameIndexComesBackAtOnce) {
  index_.reset();
  const uint64_t epoch = Must(store_->ClaimOwnership("same"));
  Must(store_->BeatOwner(epoch, 1));
  EXPECT_OK(Index::Open(*store_, OptionsOf("same")).status());
  EXPECT_TRUE(Must(store_->ListAliveOwners()).empty());
}

}  // namespace
}  // namespace esker::testing
