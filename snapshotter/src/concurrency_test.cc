// Imports, publications, tags, leases, deletions and collections at once. What one thread published
// and did not delete must be whole at any time, whatever the others do.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "testing/crash_story.h"
#include "testing/index_fixture.h"

namespace esker::testing {
namespace {

class ConcurrencyTest : public IndexFixture {
 protected:
  // A layer of a few of 24 chunks, which all threads share: what HasChunk knows is not written.
  Result<ImageLayer> ImportLayer(ImportSession& session, std::mt19937& random) {
    std::vector<std::string> data;
    const size_t count = 1 + random() % 6;
    for (size_t i = 0; i < count; ++i) data.push_back("chunk " + std::to_string(random() % 24));
    const std::string name = std::to_string(random() % 8);
    PackText text;
    text.blobs = {data, {"meta of " + name}};
    std::vector<std::string> wanted = data;
    wanted.push_back("meta of " + name);
    for (const std::string& chunk : wanted) {
      ESKER_ASSIGN_OR_RETURN(bool has, session.HasChunk(RefOf(chunk)));
      if (!has) text.chunks.push_back(chunk);
    }
    ESKER_RETURN_IF_ERROR(index_->RegisterPack(WritePack(*store_, text)));
    return LayerOf(name, data);
  }

  Result<ImageId> Publish(const std::string& label, std::mt19937& random) {
    for (;;) {
      auto session = index_->StartImport();
      Result<ImageLayer> layer = ImportLayer(*session, random);
      if (!layer.ok() && layer.status().code() == Code::kAborted) continue;  // as documented
      if (!layer.ok()) return std::move(layer).status();
      return index_->PublishImage(ManifestOf(label, {*layer}));
    }
  }

  Status LiveOneLife(const std::string& label, std::mt19937& random) {
    ESKER_ASSIGN_OR_RETURN(ImageId id, Publish(label, random));
    ESKER_ASSIGN_OR_RETURN(ImageRecord record, index_->GetImage(id));
    ESKER_RETURN_IF_ERROR(CheckLayers(*store_, *index_, record.manifest).Wrap("published"));
    const std::string tag = "tag" + std::to_string(random() % 1000) + ":" + label;
    ESKER_RETURN_IF_ERROR(index_->SetTag(tag, id));
    ESKER_ASSIGN_OR_RETURN(std::unique_ptr<Lease> lease, index_->LeaseImage(id, label));
    ESKER_ASSIGN_OR_RETURN(BlobMap map, index_->GetBlobMap(record.manifest.layers[0].data));
    if (random() % 2 == 0) {
      ESKER_RETURN_IF_ERROR(index_->DeleteTag(tag));
    } else {
      ESKER_RETURN_IF_ERROR(index_->DeleteImage(id, true));
    }
    ESKER_RETURN_IF_ERROR(CheckLayers(*store_, *index_, record.manifest).Wrap("leased"));
    for (const auto& entry : map.entries) {
      ESKER_RETURN_IF_ERROR(store_->OpenPack(entry.location.pack).status().Wrap("an old map"));
    }
    return OkStatus();
  }
};

TEST_F(ConcurrencyTest, NothingThatIsUsedIsEverTaken) {
  constexpr int kThreads = 4;
  constexpr int kLives = 25;
  std::atomic<int> running = kThreads;
  std::vector<std::thread> threads;
  ImageId kept = Must(Publish("kept", *std::make_unique<std::mt19937>(1)));
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(static_cast<unsigned>(thread) + 10);
      for (int life = 0; life < kLives; ++life) {
        std::string label = std::to_string(thread) + "-" + std::to_string(life);
        EXPECT_OK(LiveOneLife(label, random));
      }
      --running;
    });
  }
  uint64_t deleted = 0;
  for (bool grace = false; running > 0; grace = !grace) {
    Result<GcReport> report =
        index_->CollectGarbage(GcOptions{.grace_ns = grace ? 1'000'000'000 : 0});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    deleted += report->packs_deleted;
    clock_.Advance(500'000'000);
    EXPECT_OK(CheckLayers(*store_, *index_, Must(index_->GetImage(kept)).manifest));
    EXPECT_TRUE(index_->ListImages().ok());
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(deleted, 0u);
  ASSERT_OK(index_->DeleteImage(kept, true));
  Collect();
  ExpectEmptyStore();
}

TEST_F(ConcurrencyTest, ARebuildWaitsForNobodyToBeHarmed) {
  std::atomic<bool> stop = false;
  ImageId kept = Must(Publish("kept", *std::make_unique<std::mt19937>(1)));
  std::thread worker([&] {
    std::mt19937 random(7);
    for (int life = 0; !stop; ++life) EXPECT_OK(LiveOneLife(std::to_string(life), random));
  });
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(index_->Rebuild(nullptr).ok());
    EXPECT_OK(CheckLayers(*store_, *index_, Must(index_->GetImage(kept)).manifest));
    EXPECT_TRUE(index_->CollectGarbage({}).ok());
  }
  stop = true;
  worker.join();
}

}  // namespace
}  // namespace esker::testing
