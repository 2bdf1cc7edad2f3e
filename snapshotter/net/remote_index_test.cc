// The index of another process, by real gRPC over loopback.
#include "snapshotter/remote_index.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "snapshotter/index_server.h"
#include "testing/index_fixture.h"

namespace esker::testing {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr char kKey[] = "a key of more than 16 bytes";

class RemoteIndexTest : public IndexFixture {
 protected:
  void SetUp() override {
    IndexFixture::SetUp();
    Serve();
  }
  void TearDown() override {
    nodes_.clear();
    server_.reset();
    IndexFixture::TearDown();
  }

  void Serve(int port = 0) {
    IndexServerOptions options;
    options.listen = "127.0.0.1:" + std::to_string(port);
    options.key = kKey;
    options.lease_ns = lease_ns_;
    options.staleness_ns = staleness_ns_;
    server_ = Must(IndexServer::Start(*store_, *index_, options));
  }
  // The index's process ends and comes back at the same address; its nodes live on.
  void RestartIndex() {
    const int port = server_->port();
    server_.reset();
    Reopen();
    Serve(port);
  }
  void SetTimes(int64_t lease_ns, int64_t staleness_ns) {
    lease_ns_ = lease_ns;
    staleness_ns_ = staleness_ns;
    server_.reset();
    Serve();
  }
  RemoteIndexOptions NodeOptions(const std::string& name, uint64_t epoch = 1) {
    RemoteIndexOptions options;
    options.address = "127.0.0.1:" + std::to_string(server_->port());
    options.key = kKey;
    options.node_id = name;
    options.node_epoch = epoch;
    options.patience_ns = 5'000 * kMs;
    return options;
  }
  // A process of a node that has taken its leases again.
  Index& Node(const std::string& name, uint64_t epoch = 1) {
    nodes_[name] = Must(ConnectIndex(NodeOptions(name, epoch)));
    nodes_[name]->EnableGc();
    return *nodes_[name];
  }
  // What a process that is killed had: never let go of.
  template <typename T>
  static void Bury(std::unique_ptr<T> held) {
    static auto* graveyard = new std::vector<T*>();
    graveyard->push_back(held.release());
  }
  void Kill(const std::string& name) { nodes_.erase(name); }
  // Whether it comes true within a few seconds.
  static bool Soon(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
  Code CollectCode(int64_t grace_ns = 0) {
    return index_->CollectGarbage(GcOptions{.grace_ns = grace_ns}).status().code();
  }

  int64_t lease_ns_ = 60'000 * kMs, staleness_ns_ = 500 * kMs;
  std::unique_ptr<IndexServer> server_;
  std::map<std::string, std::unique_ptr<Index>> nodes_;
};

TEST_F(RemoteIndexTest, SaysWhatTheIndexSays) {
  Index& node = Node("b");
  ImageLayer layer = LayerOf("base", {"a", "b"}, DiffId("base"));
  PackWriter::Published pack = WritePack(
      *store_, {.chunks = {"a", "b", "meta of base"}, .blobs = {{"a", "b"}, {"meta of base"}}});
  ASSERT_OK(node.RegisterPack(pack));
  BlobMap map = Must(node.GetBlobMap(layer.data));
  EXPECT_EQ(map.Serialise(), Must(index_->GetBlobMap(layer.data)).Serialise());

  Manifest manifest = ManifestOf("one", {layer});
  const ImageId id = Must(node.PublishImage(manifest));
  EXPECT_EQ(id, manifest.Id());
  EXPECT_EQ(Must(node.FindLayer(DiffId("base"))).has_value(),
            Must(index_->FindLayer(DiffId("base"))).has_value());
  ASSERT_OK(node.SetTag("app:1", id, "job-1"));
  ImageRecord record = Must(node.ResolveImage("app:1"));
  EXPECT_EQ(record.id, id);
  EXPECT_EQ(record.manifest.ToJson(), manifest.ToJson());
  EXPECT_EQ(record.tags, std::vector<std::string>{"app:1"});
  EXPECT_EQ(record.jobs, Must(index_->GetImage(id)).jobs);
  EXPECT_GT(record.plain_bytes, 0u);

  Manifest child = manifest;
  child.kind = "snapshot";
  child.parent = id.ToHex();
  const ImageId snapshot = Must(node.PublishImage(child));
  EXPECT_EQ(Must(node.ListChildren(id)), std::vector<ImageId>{snapshot});
  EXPECT_EQ(Must(node.ListImages()).size(), 2u);
  EXPECT_EQ(Must(node.GetStats()).images, 2u);
  EXPECT_EQ(node.DeleteImage(id, false).code(), Code::kFailedPrecondition);
  ASSERT_OK(node.DeleteTag("app:1"));
  EXPECT_EQ(node.GetImage(id).status().code(), Code::kNotFound);
  EXPECT_THAT(node.ResolveImage("ap:1").status().message(), ::testing::HasSubstr("no image"));
  EXPECT_EQ(Must(node.Rebuild(nullptr)).packs, 3u);
}

TEST_F(RemoteIndexTest, WantsTheKey) {
  RemoteIndexOptions options = NodeOptions("b");
  options.key = "another key of more than 16 bytes";
  auto stranger = Must(ConnectIndex(options));
  EXPECT_EQ(stranger->GetStats().status().code(), Code::kUnauthenticated);
  EXPECT_EQ(stranger->LeaseImage(ImageId{}, "x").status().code(), Code::kOk) << "before EnableGc";
  EXPECT_EQ(stranger->DeleteTag("app:1").code(), Code::kUnauthenticated);
}

TEST_F(RemoteIndexTest, AMapOfAHundredThousandChunks) {
  std::vector<std::string> chunks;
  for (int i = 0; i < 100'000; ++i) chunks.push_back("chunk " + std::to_string(i));
  Index& node = Node("b");
  auto session = node.StartImport();
  ASSERT_OK(session->RegisterPack(WritePack(*store_, {.chunks = chunks, .blobs = {chunks}})));
  auto began = std::chrono::steady_clock::now();
  auto lap = [&] {
    auto now = std::chrono::steady_clock::now();
    auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - began).count();
    began = now;
    return ms;
  };
  BlobMap map = Must(node.GetBlobMap(BlobOf(chunks)));
  RecordProperty("remote_map_ms", static_cast<int>(lap()));
  EXPECT_EQ(map.entries.size(), chunks.size());
  BlobMap local = Must(index_->GetBlobMap(BlobOf(chunks)));
  RecordProperty("local_map_ms", static_cast<int>(lap()));
  EXPECT_EQ(map.Serialise(), local.Serialise());
  lap();
  std::vector<ChunkRef> refs;
  for (const std::string& chunk : chunks) refs.push_back(RefOf(chunk));
  EXPECT_THAT(Must(session->HasChunks(refs)), ::testing::Each(true));
  RecordProperty("remote_has_chunks_ms", static_cast<int>(lap()));
}

// --- leases --------------------------------------------------------------------------------------

TEST_F(RemoteIndexTest, ALeaseKeepsADeletedImageUntilItIsReleased) {
  Index& node = Node("b");
  ImageId image = AddImage("one", {AddLayer("base", {"a"})});
  auto lease = Must(node.LeaseImage(image, "sandbox"));
  auto second = Must(node.LeaseImage(image, "sandbox"));
  ASSERT_OK(node.DeleteImage(image, true));
  EXPECT_EQ(CollectCode(0), Code::kFailedPrecondition) << "another node holds something";
  EXPECT_EQ(Must(node.CollectGarbage({.grace_ns = 0})).packs_deleted, 0u)
      << "its own is no obstacle";
  lease.reset();
  EXPECT_EQ(Must(node.CollectGarbage({.grace_ns = 0})).packs_deleted, 0u);
  second.reset();
  ASSERT_TRUE(Soon([&] { return CollectCode(0) == Code::kOk; }));
  ExpectEmptyStore();
}

TEST_F(RemoteIndexTest, AnImageThatIsGoneCannotBeLeased) {
  Index& node = Node("b");
  EXPECT_EQ(node.LeaseImage(ImageId{Sha256::Of("x")}, "sandbox").status().code(), Code::kNotFound);
  EXPECT_TRUE(Soon([&] { return CollectCode(0) == Code::kOk; }));
}

TEST_F(RemoteIndexTest, ASilentNodeKeepsWhatItHeldForItsLeaseTime) {
  SetTimes(400 * kMs, 200 * kMs);
  ImageId image = AddImage("one", {AddLayer("base", {"a"})});
  Index& node = Node("b");
  Bury(Must(node.LeaseImage(image, "sandbox")));
  auto import = node.StartImport();
  ASSERT_TRUE(Must(import->HasChunk(RefOf("a"))));
  Bury(std::move(import));
  const auto died = std::chrono::steady_clock::now();
  Kill("b");
  ASSERT_OK(index_->DeleteImage(image, true));
  ASSERT_TRUE(Soon([&] { return CollectCode(0) == Code::kOk; }));
  EXPECT_GT(std::chrono::steady_clock::now() - died, std::chrono::milliseconds(400));
  ExpectEmptyStore();
  EXPECT_TRUE(Must(store_->ListRecordNames("nodes")).empty()) << "it holds nothing any more";
}

TEST_F(RemoteIndexTest, ARestartedNodeTakesItsLeasesAgain) {
  ImageId image = AddImage("one", {AddLayer("base", {"a"})});
  Bury(Must(Node("b", 1).LeaseImage(image, "sandbox")));
  ASSERT_OK(index_->DeleteImage(image, true));
  Kill("b");
  // Its next process, which has not taken anything yet.
  nodes_["b"] = Must(ConnectIndex(NodeOptions("b", 2)));
  EXPECT_TRUE(Soon([&] { return CollectCode(3600'000 * kMs) == Code::kFailedPrecondition; }));
  auto again = Must(nodes_["b"]->LeaseImage(image, "sandbox"));
  nodes_["b"]->EnableGc();
  ASSERT_TRUE(Soon([&] { return CollectCode(3600'000 * kMs) == Code::kOk; }));
  EXPECT_EQ(Must(nodes_["b"]->CollectGarbage({.grace_ns = 0})).packs_deleted, 0u);
  again.reset();
  ASSERT_TRUE(Soon([&] { return CollectCode(0) == Code::kOk; }));
  ExpectEmptyStore();
}

TEST_F(RemoteIndexTest, ARestartedIndexWaitsForItsNodes) {
  SetTimes(3'000 * kMs, 500 * kMs);
  ImageId image = AddImage("one", {AddLayer("base", {"a"})});
  Index& node = Node("b");
  auto lease = Must(node.LeaseImage(image, "sandbox"));
  ASSERT_OK(node.DeleteImage(image, true));
  RestartIndex();
  EXPECT_EQ(CollectCode(3600'000 * kMs), Code::kFailedPrecondition);
  ASSERT_TRUE(Soon([&] { return CollectCode(3600'000 * kMs) == Code::kOk; }));
  EXPECT_EQ(Must(node.CollectGarbage({.grace_ns = 0})).packs_deleted, 0u);
  EXPECT_EQ(CollectCode(0), Code::kFailedPrecondition);
  lease.reset();
  ASSERT_TRUE(Soon([&] { return CollectCode(0) == Code::kOk; }));
  ExpectEmptyStore();
}

TEST_F(RemoteIndexTest, AnIndexThatIsAwayIsWaitedFor) {
  ImageId image = AddImage("one", {AddLayer("base", {"a"})});
  Index& node = Node("b");
  const int port = server_->port();
  server_.reset();
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    Serve(port);
  });
  EXPECT_EQ(Must(node.GetImage(image)).id, image);
  later.join();
  nodes_["c"] = Must(ConnectIndex([&] {
    RemoteIndexOptions options = NodeOptions("c");
    options.address = "127.0.0.1:1";
    options.patience_ns = 100 * kMs;
    return options;
  }()));
  auto adopted = Must(nodes_["c"]->LeaseImage(image, "adopted"));
  nodes_["c"]->EnableGc();
  Status away = nodes_["c"]->GetStats().status();
  EXPECT_EQ(away.code(), Code::kUnavailable);
  EXPECT_THAT(away.message(), ::testing::HasSubstr("127.0.0.1:1"));
  EXPECT_EQ(nodes_["c"]->LeaseImage(image, "new").status().code(), Code::kUnavailable);
}

TEST_F(RemoteIndexTest, AnEarlierProcessOfANodeIsRefused) {
  ImageId image = AddImage("one", {AddLayer("base", {"a"})});
  Index& later = Node("b", 7);
  ASSERT_OK(later.LeaseImage(image, "x").status());
  auto earlier = Must(ConnectIndex(NodeOptions("b", 6)));
  earlier->EnableGc();
  EXPECT_EQ(earlier->LeaseImage(image, "x").status().code(), Code::kAborted);
  EXPECT_EQ(earlier->StartImport()->HasChunk(RefOf("a")).status().code(), Code::kAborted);
}

// --- imports -------------------------------------------------------------------------------------

TEST_F(RemoteIndexTest, AnImportPinsWhatItWasTold) {
  Index& node = Node("b");
  ImageId image = AddImage("one", {AddLayer("base", {"a", "b"}, DiffId("base"))});
  auto session = node.StartImport();
  const std::vector<ChunkRef> asked = {RefOf("b"), RefOf("unknown"), RefOf("a")};
  EXPECT_EQ(Must(session->HasChunks(asked)), (std::vector<bool>{true, false, true}));
  ASSERT_OK(node.DeleteImage(image, true));
  Must(node.CollectGarbage({.grace_ns = 0}));
  // A new blob of what was known, in a pack that holds only the list and its metadata.
  PackWriter::Published pack =
      WritePack(*store_, {.chunks = {"meta of new"}, .blobs = {{"a", "b"}, {"meta of new"}}});
  ASSERT_OK(session->RegisterPack(pack));
  ImageId next = Must(node.PublishImage(ManifestOf("new", {LayerOf("new", {"a", "b"})})));
  session.reset();
  Must(node.CollectGarbage({.grace_ns = 0}));
  EXPECT_OK(node.GetBlobMap(BlobOf({"a", "b"})).status());
  EXPECT_OK(node.GetImage(next).status());
}

TEST_F(RemoteIndexTest, ALostImportSaysSo) {
  Index& node = Node("b");
  AddImage("one", {AddLayer("base", {"a"})});
  auto session = node.StartImport();
  ASSERT_TRUE(Must(session->HasChunk(RefOf("a"))));
  PackWriter::Published pack = WritePack(*store_, {.chunks = {"new"}, .blobs = {{"a", "new"}}});
  RestartIndex();
  EXPECT_EQ(session->RegisterPack(pack).code(), Code::kAborted);
  EXPECT_EQ(session->HasChunk(RefOf("a")).status().code(), Code::kAborted);
  EXPECT_EQ(session->ClaimLayer(DiffId("x"), nullptr).status().code(), Code::kAborted);
  EXPECT_OK(node.StartImport()->RegisterPack(pack));
}

TEST_F(RemoteIndexTest, OneImportOfALayerAtATimeOverAllNodes) {
  auto first = Node("b").StartImport();
  auto second = Node("c").StartImport();
  auto claim = Must(first->ClaimLayer(DiffId("x"), nullptr));
  int polls = 0;
  EXPECT_EQ(second->ClaimLayer(DiffId("x"), [&] { return ++polls == 1; }).status().code(),
            Code::kCancelled);
  std::jthread ends([&] { claim.reset(); });
  EXPECT_OK(second->ClaimLayer(DiffId("x"), nullptr).status());
  // A node that dies with a claim: its import ends with it.
  Bury(Must(second->ClaimLayer(DiffId("y"), nullptr)));
  Bury(std::move(second));
  Kill("c");
  Node("c", 2);
  ends.join();
  EXPECT_OK(first->ClaimLayer(DiffId("y"), nullptr).status());
}

TEST_F(RemoteIndexTest, APackThatIsNotVisibleYetIsWaitedFor) {
  Index& node = Node("b");
  PackWriter::Published pack = WritePack(*store_, {.chunks = {"a"}, .blobs = {{"a"}}});
  const std::string hex = pack.id.ToHex();
  const std::string path = store_path() + "/packs/" + hex.substr(0, 2) + "/" + hex + ".pack";
  std::filesystem::rename(path, path + ".hidden");
  EXPECT_EQ(node.RegisterPack(pack).code(), Code::kAborted) << "never visible";
  std::jthread appears([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::filesystem::rename(path + ".hidden", path);
  });
  EXPECT_OK(node.RegisterPack(pack));
}

TEST_F(RemoteIndexTest, TheKeyIsAFileOfItsOwner) {
  const std::string path = directory_->path() + "/index.key";
  EXPECT_EQ(ReadIndexKey(path, false).status().code(), Code::kNotFound);
  const std::string key = Must(ReadIndexKey(path, true));
  EXPECT_GE(key.size(), 40u);
  EXPECT_EQ(Must(ReadIndexKey(path, true)), key);
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  EXPECT_EQ(ReadIndexKey(path, false).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(Must(NextNodeEpoch(directory_->path() + "/starts")), 1u);
  EXPECT_EQ(Must(NextNodeEpoch(directory_->path() + "/starts")), 2u);
}

}  // namespace
}  // namespace esker::testing
