#include <gmock/gmock.h>

#include "base/failpoint.h"
#include "imagefs/record_spaces.h"
#include "testing/index_fixture.h"

namespace esker::testing {
namespace {

constexpr int64_t kMinute = 60'000'000'000;

class GarbageTest : public IndexFixture {};

TEST_F(GarbageTest, RefusesUntilNodesHaveTheirLeases) {
  index_.reset();
  index_ = Must(Index::Open(*store_, Options()));
  EXPECT_EQ(index_->CollectGarbage({}).status().code(), Code::kFailedPrecondition);
  index_->EnableGc();
  EXPECT_TRUE(index_->CollectGarbage({}).ok());
}

TEST_F(GarbageTest, DeletingEverythingLeavesAnEmptyStore) {
  ImageLayer base = AddLayer("base", {"a", "b"}, DiffId("b"));
  ImageLayer top = AddLayer("top", {"c"});
  ImageId one = AddImage("one", {base});
  ImageId two = AddImage("two", {base, top});
  ASSERT_OK(index_->SetTag("one", one));
  ASSERT_OK(index_->SetTag("two", two));
  auto abandoned = Must(store_->NewTemporary());
  GcReport report = Collect();
  EXPECT_EQ(report.packs_deleted, 0u);
  EXPECT_EQ(report.images_live, 2u);
  EXPECT_EQ(report.packs_live, 4u);
  EXPECT_EQ(report.temporaries_deleted, 1u);

  ASSERT_OK(index_->DeleteTag("one"));
  ASSERT_OK(index_->DeleteImage(two, true));
  report = Collect();
  EXPECT_EQ(report.packs_deleted, 4u);
  EXPECT_EQ(report.images_deleted, 2u);
  EXPECT_EQ(report.packs_live, 0u);
  EXPECT_GT(report.bytes_deleted, 0u);
  ExpectEmptyStore();
  EXPECT_FALSE(Must(index_->FindLayer(DiffId("b"))).has_value());
  Index::Stats stats = Must(index_->GetStats());
  EXPECT_EQ(stats.packs + stats.chunks + stats.blobs + stats.images + stats.tags, 0u);
}

TEST_F(GarbageTest, AChildKeepsItsLayersWhenTheParentGoes) {
  ImageLayer base = AddLayer("base", {"a", "b"});
  ImageLayer top = AddLayer("top", {"c"});
  ImageId parent = AddImage("parent", {base});
  Manifest manifest = ManifestOf("child", {base, top});
  manifest.kind = "snapshot";
  manifest.parent = parent.ToHex();
  ImageId child = Must(index_->PublishImage(manifest));
  ASSERT_OK(index_->DeleteImage(parent, true));
  EXPECT_EQ(Collect().packs_deleted, 1u) << "the parent's manifest only";
  EXPECT_TRUE(index_->GetImage(child).ok());
  EXPECT_TRUE(index_->GetBlobMap(base.data).ok());
}

TEST_F(GarbageTest, StartRecordsGoWithTheirImage) {
  ImageId stays = AddImage("stays", {AddLayer("stays", {"a"})});
  ImageId goes = AddImage("goes", {AddLayer("goes", {"b"})});
  for (const ImageId& id : {stays, goes}) {
    ASSERT_OK(store_->PublishRecord(kStartRecordSpace, id.ToHex(), 1, "touched"));
    ASSERT_OK(store_->PublishRecord(kStartRecordSpace, id.ToHex(), 2, "touched"));
  }
  ASSERT_OK(index_->DeleteImage(goes, true));
  Collect();
  EXPECT_THAT(Must(store_->ListRecordNames(kStartRecordSpace)),
              ::testing::ElementsAre(stays.ToHex()));
}

TEST_F(GarbageTest, ATombstoneStaysWhileThePackLivesForItsChunks) {
  // One pack with manifest and data, as a snapshot is; another image shares the data.
  ImageLayer layer = LayerOf("snap", {"data"});
  Manifest manifest = ManifestOf("snap", {layer});
  manifest.kind = "snapshot";
  Register({.chunks = {"data", "meta of snap"},
            .blobs = {{"data"}, {"meta of snap"}},
            .manifests = {manifest.ToJson()}});
  ImageId other = AddImage("other", {layer});
  ASSERT_OK(index_->DeleteImage(manifest.Id(), false));
  Collect();
  ASSERT_TRUE(index_->Rebuild(nullptr).ok());
  EXPECT_EQ(index_->GetImage(manifest.Id()).status().code(), Code::kNotFound);
  EXPECT_TRUE(index_->GetBlobMap(layer.data).ok());
  ASSERT_OK(index_->DeleteImage(other, false));
  Collect();
  ExpectEmptyStore();
}

TEST_F(GarbageTest, LeasesKeepADeletedImage) {
  ImageLayer base = AddLayer("base", {"a"});
  ImageId id = AddImage("i", {base});
  auto lease = Must(index_->LeaseImage(id, "sandbox"));
  auto second = Must(index_->LeaseImage(id, "sandbox 2"));
  ASSERT_OK(index_->DeleteImage(id, true));
  EXPECT_EQ(Collect().packs_deleted, 0u);
  EXPECT_TRUE(index_->GetBlobMap(base.data).ok());
  // Whoever had one before may take it again while it is held.
  EXPECT_OK(index_->LeaseImage(id, "again").status());
  lease.reset();
  EXPECT_EQ(Collect().packs_deleted, 0u);
  second.reset();
  EXPECT_EQ(index_->LeaseImage(id, "late").status().code(), Code::kNotFound);
  EXPECT_EQ(Collect().packs_deleted, 2u);
  ExpectEmptyStore();
}

TEST_F(GarbageTest, AnImportKeepsWhatItDeduplicatedAgainst) {
  auto pack = Register({.chunks = {"a"}, .blobs = {{"a"}}});
  auto import = index_->StartImport();
  EXPECT_TRUE(Must(import->HasChunk(RefOf("a"))));
  EXPECT_EQ(Collect().packs_deleted, 0u);
  import.reset();
  EXPECT_EQ(Collect().packs_deleted, 1u);
  EXPECT_FALSE(PackExists(pack.id));
}

TEST_F(GarbageTest, AnImportKeepsPacksRegisteredSinceItStarted) {
  auto before = Register({.chunks = {"before"}});
  auto import = index_->StartImport();
  auto during = Register({.chunks = {"during"}});
  EXPECT_EQ(Collect().packs_deleted, 1u);
  EXPECT_FALSE(PackExists(before.id));
  EXPECT_TRUE(PackExists(during.id));
  import.reset();
  Collect();
  EXPECT_FALSE(PackExists(during.id));
}

TEST_F(GarbageTest, AnImportKeepsItsTemporaries) {
  auto import = index_->StartImport();
  auto temporary = Must(store_->NewTemporary());
  EXPECT_EQ(Collect().temporaries_deleted, 0u);
  import.reset();
  EXPECT_EQ(Collect(kMinute).temporaries_deleted, 0u) << "young, and nodes may be writing";
  EXPECT_EQ(Collect().temporaries_deleted, 1u);
}

TEST_F(GarbageTest, CondemnedPacksAnswerNothingNewAndGoAfterTheGrace) {
  auto pack = Register({.chunks = {"a"}, .blobs = {{"a"}}});
  GcReport report = Collect(kMinute);
  EXPECT_EQ(report.packs_condemned, 1u);
  EXPECT_EQ(report.packs_deleted, 0u);
  EXPECT_FALSE(Must(index_->StartImport()->HasChunk(RefOf("a"))));
  EXPECT_TRUE(index_->GetBlobMap(BlobOf({"a"})).ok()) << "readers have until the grace is over";
  Reopen();
  EXPECT_FALSE(Must(index_->StartImport()->HasChunk(RefOf("a")))) << "forgot the condemnation";
  clock_.Advance(kMinute / 2);
  EXPECT_EQ(Collect(kMinute).packs_deleted, 0u);
  clock_.Advance(kMinute / 2);
  EXPECT_EQ(Collect(kMinute).packs_deleted, 1u);
  EXPECT_FALSE(PackExists(pack.id));
}

TEST_F(GarbageTest, RegisteringACondemnedPackAgainRevivesIt) {
  ImageLayer layer = AddLayer("base", {"a"});
  EXPECT_EQ(Collect(kMinute).packs_condemned, 1u);
  EXPECT_EQ(index_->PublishImage(ManifestOf("i", {layer})).status().code(), Code::kNotFound);
  AddLayer("base", {"a"});
  ImageId id = AddImage("i", {layer});
  clock_.Advance(2 * kMinute);
  EXPECT_EQ(Collect(kMinute).packs_deleted, 0u);
  EXPECT_TRUE(index_->GetBlobMap(Must(index_->GetImage(id)).manifest.layers[0].data).ok());
}

TEST_F(GarbageTest, AChunkInTwoPacksSurvivesTheLossOfEither) {
  ImageLayer first = AddLayer("first", {"shared", "only first"});
  ImageLayer second = AddLayer("second", {"shared", "only second"});
  ImageId a = AddImage("a", {first});
  ImageId b = AddImage("b", {second});
  BlobMap before = Must(index_->GetBlobMap(second.data));
  ASSERT_OK(index_->DeleteImage(a, true));
  EXPECT_EQ(Collect().packs_deleted, 2u);
  EXPECT_EQ(Must(index_->GetBlobMap(second.data)).Serialise(), before.Serialise())
      << "maps that nodes keep must stay true while the blob lives";
  ASSERT_OK(index_->DeleteImage(b, true));
  Collect();
  ExpectEmptyStore();
}

TEST_F(GarbageTest, ALeaseKeepsEveryCopy) {
  ImageLayer layer = AddLayer("one", {"shared"});
  auto copy = Register({.chunks = {"shared", "more"}, .blobs = {{"more"}}});
  ImageId id = AddImage("i", {layer});
  auto lease = Must(index_->LeaseImage(id, "sandbox"));
  EXPECT_EQ(Collect().packs_deleted, 0u);
  lease.reset();
  EXPECT_EQ(Collect().packs_deleted, 1u);
  EXPECT_FALSE(PackExists(copy.id));
}

TEST_F(GarbageTest, AdoptsAndSweepsWhatADeadImportLeft) {
  WritePack(*store_, {.chunks = {"never registered"}});
  EXPECT_EQ(Collect().packs_deleted, 1u);
  ExpectEmptyStore();
}

TEST_F(GarbageTest, AFailureInTheMiddleIsMadeGoodByTheNextRun) {
  for (const char* point :
       {"index.gc.condemned", "index.gc.chunks_forgotten", "index.gc.pack_forgotten",
        "index.gc.pack_removed", "index.gc.packs_deleted", "index.gc.before_tag_records",
        "index.gc.before_image_records"}) {
    SCOPED_TRACE(point);
    ImageLayer layer = AddLayer("base", {"a", "b"});
    ImageId id = AddImage("i", {layer});
    ASSERT_OK(index_->SetTag("app", id));
    ASSERT_OK(index_->DeleteImage(id, true));
    ASSERT_OK(ArmFailPoints(std::string(point) + "=error:5"));
    EXPECT_FALSE(index_->CollectGarbage({}).ok());
    ASSERT_OK(ArmFailPoints(""));
    // The same content again, in whatever state its packs are.
    layer = AddLayer("base", {"a", "b"});
    EXPECT_EQ(AddImage("i", {layer}), id);
    EXPECT_TRUE(index_->GetBlobMap(layer.data).ok());
    Collect();
    EXPECT_TRUE(index_->GetBlobMap(layer.data).ok());
    EXPECT_TRUE(index_->GetImage(id).ok());
    ASSERT_OK(index_->DeleteImage(id, true));
    Collect();
    ExpectEmptyStore();
  }
}

}  // namespace
}  // namespace esker::testing
