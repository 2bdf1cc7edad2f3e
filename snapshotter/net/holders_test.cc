// Hours of a store with several nodes, in a fake clock: pushes that deduplicate against each other,
// leases, deletions, collections, silent and killed nodes, and a killed index. What a node counts
// on is there at every moment.
#include "net/holders.h"

#include <gmock/gmock.h>

#include <random>
#include <set>

#include "testing/index_fixture.h"

namespace esker::index_net {
namespace {

using namespace esker::testing;  // NOLINT

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kLease = 60 * kSecond;
constexpr int64_t kStaleness = 30 * kSecond;

class HoldersTest : public IndexFixture {
 protected:
  void SetUp() override {
    IndexFixture::SetUp();
    Attach();
  }
  void TearDown() override {
    holders_.reset();
    IndexFixture::TearDown();
  }
  void Attach() {
    holders_.emplace(*store_, *index_, Holders::Options{kLease, kStaleness, &clock_});
    Must(holders_->Load());
    index_->GuardGc([this](const GcOptions& options) { return holders_->MayCollect(options); });
  }
  void RestartIndex() {
    holders_.reset();
    Reopen();
    Attach();
  }
  Code CollectCode(int64_t grace_ns, const std::string& caller = "") {
    return index_->CollectGarbage({.grace_ns = grace_ns, .caller = caller}).status().code();
  }

  std::optional<Holders> holders_;
};

TEST_F(HoldersTest, AnIndexThatStartsGivesKnownNodesTheirTime) {
  ASSERT_OK(holders_->Renew({.holder = {"b", 1, 1}, .complete = true}).status());
  EXPECT_EQ(CollectCode(0), Code::kOk) << "it holds nothing";
  RestartIndex();
  EXPECT_EQ(CollectCode(3600 * kSecond), Code::kFailedPrecondition);
  clock_.Advance(kLease + kStaleness);
  EXPECT_EQ(CollectCode(3600 * kSecond), Code::kFailedPrecondition);
  clock_.Advance(kSecond);
  EXPECT_EQ(CollectCode(3600 * kSecond), Code::kOk);
  RestartIndex();
  EXPECT_EQ(CollectCode(0), Code::kOk) << "forgotten in the store, too";
}

TEST_F(HoldersTest, ARenewalLetsGoOnlyOfWhatIsOlder) {
  ImageId image = AddImage("one", {AddLayer("base", {"a"})});
  ASSERT_OK(holders_->LeaseImage({"b", 1, 5}, image, "x"));
  ASSERT_OK(index_->DeleteImage(image, true));
  // Made before the lease was asked for, and overtaken by it.
  ASSERT_OK(holders_->Renew({.holder = {"b", 1, 4}, .complete = true}).status());
  Must(index_->CollectGarbage({.grace_ns = 0, .caller = "b"}));
  ASSERT_OK(index_->GetBlobMap(BlobOf({"a"})).status());
  ASSERT_OK(holders_->Renew({.holder = {"b", 1, 6}, .complete = true}).status());
  Must(index_->CollectGarbage({.grace_ns = 0, .caller = "b"}));
  ExpectEmptyStore();
  auto lost = Must(holders_->Renew({.holder = {"b", 1, 7}, .complete = true, .images = {image}}));
  EXPECT_EQ(lost.images, std::vector<ImageId>{image});
}

TEST_F(HoldersTest, ImportsEndWithTheirProcess) {
  ASSERT_OK(holders_->StartImport({"b", 1, 1}, "import-1"));
  EXPECT_OK(holders_->FindImport({"b", 1, 2}, "import-1").status());
  EXPECT_EQ(holders_->FindImport({"c", 1, 1}, "import-1").status().code(), Code::kAborted);
  EXPECT_EQ(holders_->FindImport({"b", 2, 1}, "import-1").status().code(), Code::kAborted);
  EXPECT_EQ(holders_->FindImport({"b", 1, 3}, "import-1").status().code(), Code::kAborted);
  auto lost =
      Must(holders_->Renew({.holder = {"b", 2, 2}, .complete = true, .sessions = {"import-1"}}));
  EXPECT_EQ(lost.sessions, std::vector<std::string>{"import-1"});
}

// --- the story -----------------------------------------------------------------------------------

// One node as it sees itself: what it counts on. Kills leave its "mounts" alone, as for sandboxes
// under a keeper that lives on; they take its import.
struct ModelNode {
  std::string name;
  uint64_t epoch = 1;
  uint64_t sequence = 0;
  bool silent = false;   // cut off, or its process is dead: it goes on reading
  int64_t heard_ns = 0;  // when the index last heard of it
  std::multiset<ImageId> mounted;
  std::string session;               // an import under way
  std::set<std::string> told;        // chunks that the index said it has, in that import
  std::vector<std::string> written;  // chunks that it has to write itself
};

class StoryTest : public HoldersTest, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr int kChunks = 60;

  void Begin() {
    for (const char* name : {"a", "b", "c"}) nodes_.push_back(ModelNode{.name = name});
    for (ModelNode& node : nodes_) Renew(node);
  }
  size_t Pick(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  bool Chance(double p) { return std::bernoulli_distribution(p)(random_); }
  Holder Call(ModelNode& node) {
    node.heard_ns = clock_.MonotonicNanos();
    return Holder{node.name, node.epoch, ++node.sequence};
  }

  void Renew(ModelNode& node) {
    Announcement announcement{.holder = Call(node), .complete = true};
    announcement.images.assign(node.mounted.begin(), node.mounted.end());
    if (!node.session.empty()) announcement.sessions.push_back(node.session);
    auto lost = Must(holders_->Renew(announcement));
    // What it lost, it may not count on; only one that was silent for too long loses anything, or
    // an import when the index started again.
    for (const ImageId& image : lost.images) {
      EXPECT_TRUE(overdue_.contains(node.name)) << node.name << " lost an image";
      node.mounted.erase(image);
    }
    if (!lost.sessions.empty()) EndImport(node);
    overdue_.erase(node.name);
    node.silent = false;
  }
  void EndImport(ModelNode& node) {
    node.session.clear();
    node.told.clear();
    node.written.clear();
  }

  void Mount(ModelNode& node) {
    std::vector<ImageRecord> images = Must(index_->ListImages());
    if (images.empty()) return;
    const ImageRecord& image = images[Pick(images.size())];
    ASSERT_OK(holders_->LeaseImage(Call(node), image.id, "sandbox"));
    node.mounted.insert(image.id);
    manifests_[image.id] = image.manifest;
  }
  void Unmount(ModelNode& node) {
    if (node.mounted.empty()) return;
    node.mounted.erase(
        std::next(node.mounted.begin(), static_cast<long>(Pick(node.mounted.size()))));
  }

  void StartImport(ModelNode& node) {
    if (!node.session.empty()) return;
    node.session = "import-" + node.name + std::to_string(++imports_);
    ASSERT_OK(holders_->StartImport(Call(node), node.session));
  }
  void AskChunk(ModelNode& node) {
    if (node.session.empty()) return;
    Result<std::shared_ptr<HeldSession>> held = holders_->FindImport(Call(node), node.session);
    if (!held.ok()) return EndImport(node);
    const std::string chunk = "chunk " + std::to_string(Pick(kChunks));
    if (Must((*held)->session->HasChunk(RefOf(chunk)))) {
      node.told.insert(chunk);
    } else if (!std::count(node.written.begin(), node.written.end(), chunk)) {
      node.written.push_back(chunk);
    }
  }
  void FinishImport(ModelNode& node) {
    if (node.session.empty() || node.told.size() + node.written.size() == 0) return;
    std::vector<std::string> content(node.told.begin(), node.told.end());
    content.insert(content.end(), node.written.begin(), node.written.end());
    const std::string label = "image " + std::to_string(imports_);
    const Manifest manifest = ManifestOf(label, {LayerOf(label, content)});
    PackText text{.chunks = node.written, .blobs = {content, {"meta of " + label}}};
    text.chunks.push_back("meta of " + label);
    // As a snapshot does: whoever finds the pack finds the image.
    if (Chance(0.5)) text.manifests.push_back(manifest.ToJson());
    PackWriter::Published pack = WritePack(*store_, text);
    Result<std::shared_ptr<HeldSession>> held = holders_->FindImport(Call(node), node.session);
    if (!held.ok()) return EndImport(node);
    ASSERT_OK((*held)->session->RegisterPack(pack));
    Result<ImageId> image = index_->PublishImage(manifest);
    ASSERT_OK(image.status());
    ASSERT_OK(holders_->EndImport(Call(node), node.session));
    EndImport(node);
    ++published_;
  }
  void DeleteImage() {
    std::vector<ImageRecord> images = Must(index_->ListImages());
    if (images.empty()) return;
    ASSERT_OK(index_->DeleteImage(images[Pick(images.size())].id, true));
  }
  void Collect() {
    const std::string caller = Chance(0.5) ? "" : nodes_[Pick(nodes_.size())].name;
    Result<GcReport> report = index_->CollectGarbage(
        {.grace_ns = Chance(0.3) ? 0 : kLease + kStaleness, .caller = caller});
    if (report.ok()) deleted_ += report->packs_deleted;
    if (!report.ok()) ++refused_;
  }
  void KillNode(ModelNode& node) {
    node.silent = true;
    node.session.clear();
    node.told.clear();
    node.written.clear();
    ++node.epoch;
    node.sequence = 0;
  }

  void Step() {
    ModelNode& node = nodes_[Pick(nodes_.size())];
    const size_t what = Pick(100);
    if (what < 25) {
      clock_.Advance(static_cast<int64_t>(Pick(45)) * kSecond);
    } else if (what < 31) {
      Collect();
    } else if (what < 37) {
      DeleteImage();
    } else if (what < 39) {
      RestartIndex();
    } else if (what < 41) {
      KillNode(node);
    } else if (what < 43) {
      node.silent = true;
    } else if (node.silent) {
      // It comes back at some time.
      if (Chance(0.1)) Renew(node);
    } else if (what < 55) {
      Mount(node);
    } else if (what < 62) {
      Unmount(node);
    } else if (what < 68) {
      StartImport(node);
    } else if (what < 92) {
      AskChunk(node);
    } else {
      FinishImport(node);
    }
    // The others' threads renew in time.
    for (ModelNode& each : nodes_) {
      if (!each.silent) Renew(each);
      if (clock_.MonotonicNanos() - each.heard_ns > kLease) overdue_.insert(each.name);
    }
    holders_->DropSilent();
  }

  void CheckBlob(const BlobId& blob, const std::string& of) {
    Result<BlobMap> map = index_->GetBlobMap(blob);
    ASSERT_TRUE(map.ok()) << of << ": " << map.status().ToString();
    for (const BlobMap::Entry& entry : map->entries) {
      ASSERT_TRUE(PackExists(entry.location.pack)) << of;
    }
  }
  // All that anybody may count on is in the store.
  void Check() {
    for (const ImageRecord& image : Must(index_->ListImages())) {
      for (const ImageLayer& layer : image.manifest.layers) {
        CheckBlob(layer.metadata, "a live image");
        CheckBlob(layer.data, "a live image");
      }
    }
    for (const ModelNode& node : nodes_) {
      if (overdue_.contains(node.name)) continue;
      for (const ImageId& image : node.mounted) {
        for (const ImageLayer& layer : manifests_.at(image).layers) {
          CheckBlob(layer.metadata, "mounted by " + node.name);
          CheckBlob(layer.data, "mounted by " + node.name);
        }
      }
    }
  }

  std::mt19937 random_{static_cast<unsigned>(GetParam())};
  std::vector<ModelNode> nodes_;
  std::set<std::string> overdue_;          // silent for longer than their lease
  std::map<ImageId, Manifest> manifests_;  // of what was ever mounted
  int imports_ = 0;
  uint64_t deleted_ = 0, published_ = 0, refused_ = 0;
};

TEST_P(StoryTest, NobodyLosesWhatTheyHold) {
  Begin();
  const int64_t began = clock_.MonotonicNanos();
  for (int step = 0; step < 3000 && !HasFailure(); ++step) {
    Step();
    if (step % 5 == 0) Check();
  }
  RecordProperty("hours", static_cast<int>((clock_.MonotonicNanos() - began) / kSecond / 3600));
  RecordProperty("deleted", static_cast<int>(deleted_));
  RecordProperty("published", static_cast<int>(published_));
  RecordProperty("refused", static_cast<int>(refused_));
  EXPECT_GT(deleted_, 0u);
  EXPECT_GT(published_, 20u);
  // Everybody leaves: nothing stays.
  for (const ImageRecord& image : Must(index_->ListImages())) {
    ASSERT_OK(index_->DeleteImage(image.id, true));
  }
  clock_.Advance(kLease + kStaleness + kSecond);
  ASSERT_EQ(CollectCode(0), Code::kOk);
  ASSERT_EQ(CollectCode(0), Code::kOk);
  ExpectEmptyStore();
}

INSTANTIATE_TEST_SUITE_P(Seeds, StoryTest, ::testing::Range(1, 4));

}  // namespace
}  // namespace esker::index_net
