#include "snapshotter/push.h"

#include <fcntl.h>
#include <gmock/gmock.h>

#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>

#include "testing/index_fixture.h"
#include "testing/tar_maker.h"

namespace esker::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PushTest : public IndexFixture {
 protected:
  std::unique_ptr<ImagePush> Start(const OciImage& image) {
    return Must(ImagePush::Start(*store_, *index_, image));
  }
  ImageId Push(const std::string& label, const std::vector<std::string>& tars,
               const std::string& tag) {
    auto push = Start(MakeOciImage(label, tars));
    for (size_t layer : push->missing()) {
      StringSource source(tars[layer]);
      Must(push->ImportLayer(layer, source, {}));
    }
    return Must(push->Finish(tag));
  }
  Result<CommitResult> Commit(const ImageId& parent, const std::vector<std::string>& files) {
    TempDir upper = Must(TempDir::Create());
    for (const std::string& file : files) std::ofstream(upper.path() + "/" + file) << file;
    UniqueFd fd = Must(OpenFile(upper.path(), O_RDONLY | O_DIRECTORY));
    CommitRequest request;
    request.parent = parent;
    request.upper_fd = fd.get();
    request.origin["sandbox"] = "sb-1";
    return CommitUpper(*store_, *index_, request, {});
  }

  const std::string base_ = MakeTar({{"a", "alpha"}, {"b", std::string(300'000, 'b')}});
  const std::string top_ = MakeTar({{"c", "gamma"}});
};

TEST_F(PushTest, OnlyMissingLayersAreWanted) {
  ImageId first = Push("one", {base_}, "one:1");
  auto push = Start(MakeOciImage("two", {base_, top_, base_}));
  EXPECT_THAT(push->missing(), ElementsAre(1));
  EXPECT_EQ(push->totals().layers, 3u);
  EXPECT_EQ(push->totals().layers_reused, 2u);
  StringSource source(top_);
  ASSERT_OK(push->ImportLayer(1, source, {}));
  ImageId second = Must(push->Finish("two"));
  EXPECT_GT(push->totals().bytes.bytes_read, 0u);
  Manifest one = Must(index_->GetImage(first)).manifest;
  Manifest two = Must(index_->ResolveImage("two")).manifest;
  ASSERT_EQ(two.layers.size(), 3u);
  EXPECT_EQ(two.layers[0].metadata, one.layers[0].metadata);
  EXPECT_EQ(two.layers[2].metadata, one.layers[0].metadata);
  EXPECT_EQ(two.kind, "image");
  EXPECT_EQ(two.config.labels.at("label"), "two");
  EXPECT_EQ(two.origin.at("oci"), MakeOciImage("two", {base_, top_, base_}).manifest_digest);
  EXPECT_NE(first, second);
}

TEST_F(PushTest, ALayerThatMayNotBeTakenByItsNameIsSentAndStoredOnce) {
  ImageId first = Push("one", {base_}, "one:1");
  const uint64_t chunks = Must(index_->GetStats()).chunks;
  auto start = [&] {
    return Must(ImagePush::Start(*store_, *index_, MakeOciImage("one", {base_}),
                                 [](const std::string&) { return false; }));
  };
  auto push = start();
  EXPECT_THAT(push->missing(), ElementsAre(0));
  EXPECT_EQ(push->totals().layers_reused, 0u);
  EXPECT_EQ(push->Finish("@p/guess").status().code(), Code::kFailedPrecondition);
  StringSource wrong(top_);
  EXPECT_EQ(push->ImportLayer(0, wrong, {}).code(), Code::kDataLoss);
  StringSource source(base_);
  ASSERT_OK(push->ImportLayer(0, source, {}));
  EXPECT_EQ(Must(push->Finish("@p/mine", "job-1")), first);
  EXPECT_EQ(Must(index_->GetImage(first)).jobs.at("@p/mine:latest"), "job-1");
  EXPECT_EQ(Must(index_->GetStats()).chunks, chunks);
}

TEST_F(PushTest, TheSameImageAlwaysHasTheSameId) {
  ImageId first = Push("one", {base_, top_}, "one");
  EXPECT_EQ(Push("one", {base_, top_}, "other-name"), first);
  ASSERT_OK(index_->DeleteImage(first, true));
  Collect();
  ExpectEmptyStore();
  clock_.Advance(1'000'000'000'000);
  EXPECT_EQ(Push("one", {base_, top_}, "one"), first);
}

TEST_F(PushTest, AWrongLayerIsRefusedAndLeavesNothing) {
  auto push = Start(MakeOciImage("one", {base_}));
  StringSource wrong(top_);
  Status status = push->ImportLayer(0, wrong, {});
  EXPECT_EQ(status.code(), Code::kDataLoss) << status.ToString();
  StringSource cut(base_.substr(0, base_.size() / 2));
  EXPECT_EQ(push->ImportLayer(0, cut, {}).code(), Code::kDataLoss);
  Status unfinished = push->Finish("one").status();
  EXPECT_EQ(unfinished.code(), Code::kFailedPrecondition);
  EXPECT_THAT(unfinished.message(), HasSubstr("layer 0"));
  EXPECT_EQ(push->ImportLayer(7, cut, {}).code(), Code::kInvalidArgument);
  push.reset();
  EXPECT_THAT(Must(index_->ListImages()), IsEmpty());
  Collect();
  ExpectEmptyStore();
}

TEST_F(PushTest, ABadTagIsRefusedBeforeAnythingIsPublished) {
  auto push = Start(MakeOciImage("one", {base_}));
  StringSource source(base_);
  ASSERT_OK(push->ImportLayer(0, source, {}));
  EXPECT_EQ(push->Finish("Not A Tag").status().code(), Code::kInvalidArgument);
  EXPECT_THAT(Must(index_->ListImages()), IsEmpty());
}

TEST_F(PushTest, GarbageCollectionLeavesARunningPushAlone) {
  auto push = Start(MakeOciImage("one", {base_, top_}));
  StringSource first(base_);
  ASSERT_OK(push->ImportLayer(0, first, {}));
  EXPECT_EQ(Collect().packs_deleted, 0u);
  StringSource second(top_);
  ASSERT_OK(push->ImportLayer(1, second, {}));
  EXPECT_EQ(Collect().packs_deleted, 0u);
  ImageId id = Must(push->Finish("one"));
  push.reset();
  EXPECT_EQ(Collect().packs_deleted, 0u);
  EXPECT_TRUE(index_->GetImage(id).ok());
}

TEST_F(PushTest, LayersOfAnAbandonedPushAreFoundByTheNext) {
  {
    auto push = Start(MakeOciImage("one", {base_, top_}));
    StringSource source(base_);
    ASSERT_OK(push->ImportLayer(0, source, {}));
  }
  EXPECT_THAT(Start(MakeOciImage("one", {base_, top_}))->missing(), ElementsAre(1));
  Collect();
  ExpectEmptyStore();
  EXPECT_THAT(Start(MakeOciImage("one", {base_, top_}))->missing(), ElementsAre(0, 1));
}

TEST_F(PushTest, ATarWithoutAManifestIsAnImageOfOneLayer) {
  OciImage image;
  image.layers.emplace_back();
  auto push = Start(image);
  EXPECT_THAT(push->missing(), ElementsAre(0));
  StringSource source(base_);
  ASSERT_OK(push->ImportLayer(0, source, {}));
  ImageId id = Must(push->Finish("plain"));
  Manifest manifest = Must(index_->GetImage(id)).manifest;
  ASSERT_EQ(manifest.layers.size(), 1u);
  EXPECT_EQ(manifest.layers[0].diff_id, "sha256:" + Sha256::Of(base_).ToHex());
  EXPECT_THAT(Start(MakeOciImage("same", {base_}))->missing(), IsEmpty());
}

// Gives its bytes only after Open() was called; tells when somebody waits for them.
class GatedSource final : public ByteSource {
 public:
  explicit GatedSource(std::string text) : source_(std::move(text)) {}
  Result<size_t> Read(void* buffer, size_t size) override {
    std::unique_lock lock(mutex_);
    reading_ = true;
    changed_.notify_all();
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return open_; })) {
      return DeadlineExceededError("the gate stayed shut");
    }
    if (broken_) return UnavailableError("the client went away");
    return source_.Read(buffer, size);
  }
  bool WaitForReader() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return reading_; });
  }
  void Open(bool broken = false) {
    std::lock_guard lock(mutex_);
    open_ = true;
    broken_ = broken;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reading_ = false, open_ = false, broken_ = false;
  StringSource source_;
};

// Counts how often an import asks whether it is cancelled: it does so while it waits for another.
struct WaitWatcher {
  std::mutex mutex;
  std::condition_variable changed;
  int polls = 0;
  std::function<bool()> Poll() {
    return [this] {
      std::lock_guard lock(mutex);
      ++polls;
      changed.notify_all();
      return false;
    };
  }
  bool WaitForPoll() {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(60), [&] { return polls > 0; });
  }
};

TEST_F(PushTest, TwoPushesOfOneLayerImportItOnce) {
  auto first = Start(MakeOciImage("one", {base_}));
  auto second = Start(MakeOciImage("two", {base_}));
  EXPECT_THAT(second->missing(), ElementsAre(0));
  GatedSource slow(base_);
  StringSource unread(base_);
  WaitWatcher watcher;
  std::thread importing([&] { EXPECT_OK(first->ImportLayer(0, slow, {})); });
  ASSERT_TRUE(slow.WaitForReader());
  std::thread waiting(
      [&] { EXPECT_OK(second->ImportLayer(0, unread, {.cancelled = watcher.Poll()})); });
  EXPECT_TRUE(watcher.WaitForPoll());
  slow.Open();
  importing.join();
  waiting.join();
  EXPECT_EQ(second->totals().layers_reused, 1u);
  EXPECT_EQ(second->totals().bytes.bytes_read, 0u);
  char byte;
  EXPECT_EQ(Must(unread.Read(&byte, 1)), 1u) << "the second source was read";
  Must(first->Finish("one"));
  Must(second->Finish("two"));
  EXPECT_EQ(Must(index_->GetStats()).packs, 3u);
}

TEST_F(PushTest, TheSecondPushTakesOverWhenTheFirstFails) {
  auto first = Start(MakeOciImage("one", {base_}));
  auto second = Start(MakeOciImage("one", {base_}));
  GatedSource breaking(base_);
  StringSource good(base_);
  WaitWatcher watcher;
  std::thread importing([&] { EXPECT_FALSE(first->ImportLayer(0, breaking, {}).ok()); });
  ASSERT_TRUE(breaking.WaitForReader());
  std::thread waiting(
      [&] { EXPECT_OK(second->ImportLayer(0, good, {.cancelled = watcher.Poll()})); });
  EXPECT_TRUE(watcher.WaitForPoll());
  breaking.Open(/*broken=*/true);
  importing.join();
  waiting.join();
  EXPECT_TRUE(second->Finish("one").ok());
}

TEST_F(PushTest, AWaitingPushCanBeCancelled) {
  auto first = Start(MakeOciImage("one", {base_}));
  auto second = Start(MakeOciImage("one", {base_}));
  GatedSource slow(base_);
  std::thread importing([&] { EXPECT_OK(first->ImportLayer(0, slow, {})); });
  ASSERT_TRUE(slow.WaitForReader());
  StringSource unread(base_);
  Status status = second->ImportLayer(0, unread, {.cancelled = [] { return true; }});
  EXPECT_EQ(status.code(), Code::kCancelled);
  slow.Open();
  importing.join();
}

// --- commits -------------------------------------------------------------------------------------

TEST_F(PushTest, CommitAddsALayerInOnePack) {
  ImageId parent = Push("base", {base_}, "base");
  size_t packs = PacksInStore();
  CommitResult result = Must(Commit(parent, {"new file", ".wh.not-a-whiteout"}));
  EXPECT_EQ(PacksInStore(), packs + 1) << "data, metadata, map and manifest are one file";
  ImageRecord record = Must(index_->GetImage(result.image));
  EXPECT_EQ(record.manifest.kind, "snapshot");
  EXPECT_EQ(record.manifest.parent, parent.ToHex());
  EXPECT_EQ(record.manifest.origin.at("sandbox"), "sb-1");
  EXPECT_THAT(record.manifest.origin.at("created"), ::testing::MatchesRegex("20.*T.*Z"));
  EXPECT_EQ(record.manifest.config.env, (std::vector<std::string>{"PATH=/bin"}));
  ASSERT_EQ(record.manifest.layers.size(), 2u);
  EXPECT_TRUE(index_->GetBlobMap(record.manifest.layers[1].metadata).ok());
  EXPECT_TRUE(index_->GetBlobMap(record.manifest.layers[1].data).ok());

  CommitResult again = Must(Commit(parent, {"new file", ".wh.not-a-whiteout"}));
  EXPECT_NE(again.image, result.image);
}

TEST_F(PushTest, AnEmptyUpperGivesANewImageOfTheSameLayers) {
  ImageId parent = Push("base", {base_}, "base");
  CommitResult first = Must(Commit(parent, {}));
  CommitResult second = Must(Commit(parent, {}));
  EXPECT_NE(first.image, second.image);
  EXPECT_EQ(Must(index_->GetImage(first.image)).manifest.layers.size(), 1u);
  ASSERT_OK(index_->DeleteImage(first.image, false));
  EXPECT_TRUE(index_->GetImage(second.image).ok());
}

TEST_F(PushTest, ASnapshotOutlivesItsParentsAndGoesAlone) {
  ImageId parent = Push("base", {base_}, "base");
  ImageId child = Must(Commit(parent, {"one"})).image;
  ImageId grandchild = Must(Commit(child, {"two"})).image;
  ASSERT_OK(index_->DeleteTag("base"));
  ASSERT_OK(index_->DeleteImage(child, false));
  Collect();
  ImageRecord record = Must(index_->GetImage(grandchild));
  ASSERT_EQ(record.manifest.layers.size(), 3u);
  for (const ImageLayer& layer : record.manifest.layers) {
    EXPECT_TRUE(index_->GetBlobMap(layer.metadata).ok());
    EXPECT_TRUE(index_->GetBlobMap(layer.data).ok());
  }
  EXPECT_EQ(Commit(parent, {"late"}).status().code(), Code::kNotFound);
  ASSERT_OK(index_->DeleteImage(grandchild, false));
  Collect();
  ExpectEmptyStore();
}

}  // namespace
}  // namespace esker::testing
