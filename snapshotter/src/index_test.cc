#include <gmock/gmock.h>

#include <fstream>

#include "base/failpoint.h"
#include "testing/index_fixture.h"

namespace esker::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class IndexTest : public IndexFixture {
 protected:
  std::string ReadChunk(const BlobMap::Entry& entry) {
    UniqueFd fd = Must(store_->OpenPack(entry.location.pack));
    std::vector<uint8_t> frame = Must(ReadFrame(fd.get(), entry.location));
    return std::string(frame.begin() + entry.location.offset,
                       frame.begin() + entry.location.offset + entry.chunk.length);
  }
  std::vector<std::string> ReadBlob(const BlobId& id) {
    std::vector<std::string> texts;
    for (const auto& entry : Must(index_->GetBlobMap(id)).entries)
      texts.push_back(ReadChunk(entry));
    return texts;
  }
};

// --- packs and blobs -----------------------------------------------------------------------------

TEST_F(IndexTest, BlobMapLeadsToTheBytes) {
  Register({.chunks = {"one", "two"}, .blobs = {}});
  Register({.chunks = {"three"}, .blobs = {{"one", "three", "two", "one"}}});
  BlobId id = BlobOf({"one", "three", "two", "one"});
  EXPECT_THAT(ReadBlob(id), ElementsAre("one", "three", "two", "one"));
  EXPECT_EQ(Must(index_->GetBlobMap(id)).id, id);
}

TEST_F(IndexTest, UnknownBlobIsNotFoundAndMissingChunkIsDataLoss) {
  EXPECT_EQ(index_->GetBlobMap(BlobOf({"x"})).status().code(), Code::kNotFound);
  Register({.chunks = {"here"}, .blobs = {{"here", "nowhere"}}});
  Status status = index_->GetBlobMap(BlobOf({"here", "nowhere"})).status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr(Sha256::Of("nowhere").ToHex()));
}

TEST_F(IndexTest, RegisteringTwiceIsFine) {
  auto pack = Register({.chunks = {"a"}, .blobs = {{"a"}}});
  EXPECT_OK(index_->RegisterPack(pack));
  EXPECT_EQ(Must(index_->GetStats()).chunks, 1u);
}

TEST_F(IndexTest, APackThatIsNotInTheStoreIsRefused) {
  auto pack = WritePack(*store_, {.chunks = {"a"}});
  ASSERT_OK(store_->RemovePack(pack.id));
  EXPECT_EQ(index_->RegisterPack(pack).code(), Code::kAborted);
  EXPECT_FALSE(Must(index_->StartImport()->HasChunk(RefOf("a"))));
}

TEST_F(IndexTest, LookupKnowsDigestAndLength) {
  Register({.chunks = {"abc"}});
  auto lookup = index_->StartImport();
  EXPECT_TRUE(Must(lookup->HasChunk(RefOf("abc"))));
  ChunkRef wrong = RefOf("abc");
  wrong.length = 4;
  EXPECT_FALSE(Must(lookup->HasChunk(wrong)));
  EXPECT_FALSE(Must(lookup->HasChunk(RefOf("abd"))));
}

TEST_F(IndexTest, EmptyBlobListIsKnown) {
  Register({.blobs = {{}}});
  EXPECT_TRUE(Must(index_->GetBlobMap(BlobOf({}))).entries.empty());
}

// --- images --------------------------------------------------------------------------------------

TEST_F(IndexTest, PublishGetListDelete) {
  ImageId id = AddImage("first", {AddLayer("base", {"file a", "file b"})});
  ImageRecord record = Must(index_->GetImage(id));
  EXPECT_EQ(record.id, id);
  EXPECT_EQ(record.manifest.config.labels.at("label"), "first");
  EXPECT_EQ(record.plain_bytes, 3 * kBlockSize);
  EXPECT_GT(record.published_ns, 0);
  EXPECT_EQ(Must(index_->ListImages()).size(), 1u);
  ASSERT_OK(index_->DeleteImage(id, false));
  EXPECT_EQ(index_->GetImage(id).status().code(), Code::kNotFound);
  EXPECT_THAT(Must(index_->ListImages()), IsEmpty());
  EXPECT_EQ(index_->DeleteImage(id, false).code(), Code::kNotFound);
}

TEST_F(IndexTest, PublishingNamesTheFirstUnknownBlob) {
  ImageLayer here = AddLayer("here", {"x"});
  ImageLayer missing = LayerOf("missing", {"y"});
  Status status = index_->PublishImage(ManifestOf("m", {here, missing})).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(missing.metadata.ToHex()));
  EXPECT_EQ(PacksInStore(), 1u);
}

TEST_F(IndexTest, PublishingAgainIsTheSameImage) {
  ImageLayer layer = AddLayer("base", {"x"});
  ImageId id = AddImage("i", {layer});
  size_t packs = PacksInStore();
  EXPECT_EQ(AddImage("i", {layer}), id);
  EXPECT_EQ(PacksInStore(), packs);
}

TEST_F(IndexTest, ADeletedImageIsPublishedAgainAndSurvivesRestartAndRebuild) {
  ImageLayer layer = AddLayer("base", {"x"});
  ImageId id = AddImage("i", {layer});
  ASSERT_OK(index_->DeleteImage(id, false));
  Reopen();
  EXPECT_EQ(index_->GetImage(id).status().code(), Code::kNotFound);
  ASSERT_TRUE(index_->Rebuild(nullptr).ok());
  EXPECT_EQ(index_->GetImage(id).status().code(), Code::kNotFound) << "a rebuild resurrected it";
  EXPECT_EQ(AddImage("i", {layer}), id);
  EXPECT_TRUE(index_->GetImage(id).ok());
  ASSERT_TRUE(index_->Rebuild(nullptr).ok());
  EXPECT_TRUE(index_->GetImage(id).ok()) << "the newer record says it lives";
}

TEST_F(IndexTest, LayersAreFoundByDiffId) {
  ImageLayer layer = AddLayer("base", {"x"}, DiffId("aa"));
  EXPECT_FALSE(Must(index_->FindLayer(DiffId("aa"))).has_value());
  AddImage("i", {layer});
  std::optional<ImageLayer> found = Must(index_->FindLayer(DiffId("aa")));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->metadata, layer.metadata);
  EXPECT_FALSE(Must(index_->FindLayer("")).has_value());
}

// --- tags and references -------------------------------------------------------------------------

TEST_F(IndexTest, ResolvesNamesIdsAndPrefixes) {
  ImageId id = AddImage("i", {AddLayer("base", {"x"})});
  ASSERT_OK(index_->SetTag("team/app", id));
  for (std::string reference :
       {std::string("team/app"), std::string("team/app:latest"), id.ToHex(), "sha256:" + id.ToHex(),
        id.ToHex().substr(0, 12), id.ToHex().substr(0, 13)}) {
    Result<ImageRecord> record = index_->ResolveImage(reference);
    ASSERT_TRUE(record.ok()) << reference << ": " << record.status().ToString();
    EXPECT_EQ(record->id, id);
    EXPECT_THAT(record->tags, ElementsAre("team/app:latest"));
  }
}

TEST_F(IndexTest, NotFoundListsTheNearestNames) {
  ImageId id = AddImage("i", {AddLayer("base", {"x"})});
  for (const char* name : {"debian-py:1", "debian-py:2", "alpine"}) {
    ASSERT_OK(index_->SetTag(name, id));
  }
  Status status = index_->ResolveImage("debain-py:1").status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("debain-py:1"));
  EXPECT_THAT(status.message(), HasSubstr("debian-py:1"));
  EXPECT_THAT(status.message(), ::testing::Not(HasSubstr("alpine")));
  EXPECT_EQ(index_->ResolveImage("No Such").status().code(), Code::kInvalidArgument);
}

TEST_F(IndexTest, DeletingATaggedImageNeedsForce) {
  ImageId id = AddImage("i", {AddLayer("base", {"x"})});
  ASSERT_OK(index_->SetTag("a", id));
  EXPECT_EQ(index_->DeleteImage(id, false).code(), Code::kFailedPrecondition);
  ASSERT_OK(index_->DeleteImage(id, true));
  EXPECT_EQ(index_->ResolveImage("a").status().code(), Code::kNotFound);
  Reopen();
  EXPECT_EQ(index_->ResolveImage("a").status().code(), Code::kNotFound);
}

TEST_F(IndexTest, AnImageGoesWithItsLastTagAndASnapshotDoesNot) {
  ImageLayer layer = AddLayer("base", {"x"});
  ImageId image = AddImage("i", {layer});
  Manifest manifest = ManifestOf("s", {layer});
  manifest.kind = "snapshot";
  ImageId snapshot = Must(index_->PublishImage(manifest));
  ASSERT_OK(index_->SetTag("one", image));
  ASSERT_OK(index_->SetTag("two", image));
  ASSERT_OK(index_->SetTag("snap", snapshot));
  ASSERT_OK(index_->DeleteTag("one"));
  EXPECT_TRUE(index_->GetImage(image).ok());
  ASSERT_OK(index_->DeleteTag("two"));
  EXPECT_EQ(index_->GetImage(image).status().code(), Code::kNotFound);
  ASSERT_OK(index_->DeleteTag("snap"));
  EXPECT_TRUE(index_->GetImage(snapshot).ok());
  EXPECT_EQ(index_->DeleteTag("snap").code(), Code::kNotFound);
}

TEST_F(IndexTest, MovingATagDropsTheImageThatHadOnlyIt) {
  ImageLayer layer = AddLayer("base", {"x"});
  ImageId old_image = AddImage("old", {layer});
  ImageId new_image = AddImage("new", {layer});
  ASSERT_OK(index_->SetTag("app", old_image));
  ASSERT_OK(index_->SetTag("app", new_image));
  EXPECT_EQ(Must(index_->ResolveImage("app")).id, new_image);
  EXPECT_EQ(index_->GetImage(old_image).status().code(), Code::kNotFound);
  EXPECT_EQ(index_->SetTag("x", old_image).code(), Code::kNotFound);
}

TEST_F(IndexTest, AFailureWhileATagMovesLeavesOneOfBothStates) {
  for (const char* point : {"index.tag.drop_prepared", "index.tag.before_record",
                            "index.tag.after_record", "index.tag.drop_decided",
                            "index.image_state.before_record", "index.image_state.after_record"}) {
    SCOPED_TRACE(point);
    ImageLayer layer = AddLayer("base", {"x"});
    ImageId old_image = AddImage(std::string("old ") + point, {layer});
    ImageId new_image = AddImage(std::string("new ") + point, {layer});
    ImageId other = AddImage(std::string("other ") + point, {layer});
    ASSERT_OK(index_->SetTag("app", old_image));
    ASSERT_OK(ArmFailPoints(std::string(point) + "=error:5"));
    EXPECT_FALSE(index_->SetTag("app", new_image).ok());
    ASSERT_OK(ArmFailPoints(""));
    // Any later change finishes or undoes it first.
    ASSERT_OK(index_->SetTag("other", other));
    Reopen();
    Result<ImageRecord> app = index_->ResolveImage("app");
    ASSERT_TRUE(app.ok()) << app.status().ToString();
    bool moved = app->id == new_image;
    EXPECT_TRUE(moved || app->id == old_image);
    EXPECT_EQ(index_->GetImage(old_image).ok(), !moved);
    ASSERT_OK(index_->SetTag("app", other));
    EXPECT_EQ(index_->GetImage(old_image).status().code(), Code::kNotFound);
  }
}

TEST_F(IndexTest, ChildrenAreListedAlsoAfterTheParentIsGone) {
  ImageLayer layer = AddLayer("base", {"x"});
  ImageId parent = AddImage("parent", {layer});
  Manifest manifest = ManifestOf("child", {layer});
  manifest.parent = parent.ToHex();
  ImageId child = Must(index_->PublishImage(manifest));
  EXPECT_THAT(Must(index_->ListChildren(parent)), ElementsAre(child));
  ASSERT_OK(index_->DeleteImage(parent, true));
  Reopen();
  EXPECT_THAT(Must(index_->ListChildren(parent)), ElementsAre(child));
  ASSERT_OK(index_->DeleteImage(child, true));
  EXPECT_THAT(Must(index_->ListChildren(parent)), IsEmpty());
}

// --- names of projects ---------------------------------------------------------------------------

class ProjectsTest : public IndexTest {
 protected:
  Code CodeOf(const std::string& reference, const ImageView& view) {
    return index_->ResolveImage(reference, view).status().code();
  }
  const ImageView alpha_{"alpha", false}, beta_{"beta", false}, all_;
};

TEST_F(ProjectsTest, EachHasItsOwnNamesBesideTheSharedOnes) {
  ImageId shared = AddImage("shared", {AddLayer("base", {"x"})});
  ImageId mine = AddImage("mine", {AddLayer("mine", {"y"})});
  ASSERT_OK(index_->SetTag("app:1", shared));
  ASSERT_OK(index_->SetTag("@alpha/app:1", mine, "train-7"));
  auto check = [&] {
    EXPECT_EQ(Must(index_->ResolveImage("app:1", alpha_)).id, mine);
    EXPECT_EQ(Must(index_->ResolveImage("app:1", beta_)).id, shared);
    EXPECT_EQ(Must(index_->ResolveImage("app:1")).id, shared);
    EXPECT_EQ(Must(index_->ResolveImage("app:1", {"alpha", true})).id, mine);
    EXPECT_EQ(Must(index_->ResolveImage("@alpha/app:1")).jobs.at("@alpha/app:1"), "train-7");
    EXPECT_TRUE(Must(index_->GetImage(shared)).jobs.empty());
    EXPECT_EQ(CodeOf("@alpha/app:1", beta_), Code::kNotFound);
  };
  check();
  Reopen();
  check();
  ASSERT_TRUE(index_->Rebuild(nullptr).ok());
  check();
  ASSERT_OK(index_->DeleteTag("@alpha/app:1"));
  EXPECT_EQ(Must(index_->ResolveImage("app:1", alpha_)).id, shared);
  EXPECT_EQ(index_->GetImage(mine).status().code(), Code::kNotFound) << "it lost its last name";
}

TEST_F(ProjectsTest, WhatAViewDoesNotShowDoesNotExist) {
  ImageId secret = AddImage("secret", {AddLayer("base", {"x"})});
  ImageId nameless = AddImage("nameless", {AddLayer("base", {"x"})});
  Manifest snapshot = ManifestOf("snapshot", {AddLayer("base", {"x"})});
  snapshot.kind = "snapshot";
  snapshot.origin["project"] = "alpha";
  ImageId taken = Must(index_->PublishImage(snapshot));
  ASSERT_OK(index_->SetTag("@alpha/secret:1", secret));
  for (const std::string& reference :
       {std::string("secret:1"), std::string("@alpha/secret:1"), secret.ToHex(),
        secret.ToHex().substr(0, 12), "sha256:" + secret.ToHex(), taken.ToHex()}) {
    EXPECT_EQ(CodeOf(reference, alpha_), Code::kOk) << reference;
    Status hidden = index_->ResolveImage(reference, beta_).status();
    EXPECT_EQ(hidden.code(), Code::kNotFound) << reference;
    EXPECT_THAT(hidden.message(), HasSubstr("no image has a name yet"));
    EXPECT_THAT(hidden.message(), ::testing::Not(HasSubstr("nearest")));
  }
  EXPECT_EQ(CodeOf(nameless.ToHex(), alpha_), Code::kNotFound);
  EXPECT_EQ(CodeOf(nameless.ToHex(), all_), Code::kOk);
  EXPECT_EQ(CodeOf(taken.ToHex(), {"", false}), Code::kNotFound);
  EXPECT_THAT(index_->ResolveImage("secret:1").status().message(), HasSubstr("@alpha/secret:1"));

  // The same content under a name of beta's: now it exists for both, each with its own names.
  ASSERT_OK(index_->SetTag("@beta/mine:1", secret, "j"));
  EXPECT_THAT(Must(index_->ResolveImage(secret.ToHex(), alpha_)).tags,
              ElementsAre("@alpha/secret:1"));
  EXPECT_TRUE(Must(index_->ResolveImage("secret:1", alpha_)).jobs.empty());
  EXPECT_THAT(Must(index_->ResolveImage("mine:1", beta_)).tags, ElementsAre("@beta/mine:1"));
  EXPECT_EQ(Must(index_->ResolveImage(secret.ToHex())).tags.size(), 2u);
  ASSERT_OK(index_->DeleteTag("@alpha/secret:1"));
  EXPECT_EQ(CodeOf(secret.ToHex(), alpha_), Code::kNotFound);
  EXPECT_EQ(CodeOf(secret.ToHex(), beta_), Code::kOk);
}

TEST_F(ProjectsTest, RecordsOfBeforeProjectsAreSharedNames) {
  ImageId id = AddImage("i", {AddLayer("base", {"x"})});
  ASSERT_OK(store_->PublishRecord("tags", "old:1", 1, "image " + id.ToHex() + "\n"));
  ASSERT_OK(store_->PublishRecord("tags", "@beta/stolen:1", 1,
                                  "tag 2\nimage " + id.ToHex() + "\nproject alpha\n"));
  Reopen();
  EXPECT_EQ(Must(index_->ResolveImage("old:1", beta_)).id, id);
  EXPECT_EQ(CodeOf("stolen:1", beta_), Code::kNotFound);
  ASSERT_OK(index_->SetTag("old:1", AddImage("next", {AddLayer("base", {"x"})})));
}

TEST_F(IndexTest, ADamagedTagRecordLosesNothingElse) {
  ImageId id = AddImage("i", {AddLayer("base", {"x"})});
  ASSERT_OK(index_->SetTag("good", id));
  ASSERT_OK(index_->SetTag("bad", id));
  std::ofstream(store_path() + "/records/tags/bad%3Alatest/1", std::ios::trunc) << "scribble";
  Reopen();
  EXPECT_EQ(Must(index_->ResolveImage("good")).id, id);
  EXPECT_EQ(Must(index_->ResolveImage("bad")).id, id) << "the database knew it";
  ASSERT_TRUE(index_->Rebuild(nullptr).ok());
  EXPECT_EQ(Must(index_->ResolveImage("good")).id, id);
  EXPECT_EQ(index_->ResolveImage("bad").status().code(), Code::kNotFound);
  EXPECT_TRUE(index_->CollectGarbage({}).ok());
  EXPECT_TRUE(PathExists(store_path() + "/records/tags/bad%3Alatest/1"));
}

TEST(NormaliseTag, AcceptsAndRefuses) {
  EXPECT_EQ(*NormaliseTag("debian"), "debian:latest");
  EXPECT_EQ(*NormaliseTag("a/b_c/d-e.f:V1.2-x_y"), "a/b_c/d-e.f:V1.2-x_y");
  for (const char* bad :
       {"",     ":",    "a:", ":x", "A",    "a//b", "/a",          "a/",  "a b",   "a:b:c",
        "../a", "a/..", ".a", "-a", "a:-x", "a:.x", "host:5000/a", "a\n", "a:x/y", "a@b"}) {
    Result<std::string> name = NormaliseTag(bad);
    EXPECT_EQ(name.status().code(), Code::kInvalidArgument) << bad;
  }
  EXPECT_EQ(NormaliseTag(std::string(201, 'a')).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(NormaliseTag(std::string(200, 'a') + ":" + std::string(100, 'b')).status().code(),
            Code::kInvalidArgument);
}

// --- opening -------------------------------------------------------------------------------------

TEST_F(IndexTest, ASecondServerOnTheSameDirectoryIsRefused) {
  Result<std::unique_ptr<Index>> second = Index::Open(*store_, Options());
  ASSERT_EQ(second.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr(db_path()));
  ImageId id = AddImage("i", {AddLayer("base", {"x"})});
  EXPECT_OK(index_->SetTag("still-owner", id));
}

TEST_F(IndexTest, ALaterOwnerOfTheStoreStopsTheEarlierOne) {
  ImageId id = AddImage("i", {AddLayer("base", {"x"})});
  IndexOptions options = Options();
  options.db_directory = directory_->path() + "/other";
  options.claimant = "the-other-host";
  auto other = Must(Index::Open(*store_, options));
  Status status = index_->SetTag("mine", id);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("the-other-host"));
  EXPECT_EQ(index_->CollectGarbage({}).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(index_->DeleteImage(id, true).code(), Code::kFailedPrecondition);
  EXPECT_EQ(index_->PublishImage(ManifestOf("n", {})).status().code(), Code::kFailedPrecondition);
  EXPECT_OK(other->SetTag("theirs", id));
}

TEST_F(IndexTest, AStartAdoptsPacksThatWereNeverRegistered) {
  index_.reset();
  ImageLayer layer = LayerOf("base", {"x"});
  Manifest manifest = ManifestOf("orphan", {layer});
  auto pack = WritePack(*store_, {.chunks = {"x", "meta of base"},
                                  .blobs = {{"x"}, {"meta of base"}},
                                  .manifests = {manifest.ToJson()}});
  uint64_t done = 0, total = 0;
  IndexOptions options = Options();
  options.on_progress = [&](uint64_t d, uint64_t t) { done = d, total = t; };
  index_ = Must(Index::Open(*store_, options));
  EXPECT_EQ(done, 1u);
  EXPECT_EQ(total, 1u);
  EXPECT_EQ(Must(index_->GetImage(manifest.Id())).manifest.layers.size(), 1u);
  EXPECT_THAT(ReadBlob(layer.data), ElementsAre("x"));
}

TEST_F(IndexTest, AStartDropsPacksThatAreGone) {
  auto kept = Register({.chunks = {"shared", "k"}, .blobs = {{"shared"}}});
  auto lost = Register({.chunks = {"shared", "l"}, .blobs = {{"shared"}, {"l"}}});
  index_.reset();
  ASSERT_OK(store_->RemovePack(lost.id));
  Open();
  EXPECT_THAT(ReadBlob(BlobOf({"shared"})), ElementsAre("shared"));
  EXPECT_EQ(index_->GetBlobMap(BlobOf({"l"})).status().code(), Code::kNotFound);
  EXPECT_EQ(Must(index_->GetStats()).packs, 1u);
  EXPECT_FALSE(Must(index_->StartImport()->HasChunk(RefOf("l"))));
}

TEST_F(IndexTest, ADatabaseThatIsGoneOrCorruptIsMadeAnew) {
  ImageId id = AddImage("i", {AddLayer("base", {"x"})});
  ASSERT_OK(index_->SetTag("app", id));
  index_.reset();
  ASSERT_OK(RemoveTree(db_path()));
  Open();
  EXPECT_EQ(Must(index_->ResolveImage("app")).id, id);
  index_.reset();
  for (const std::string& name : Must(ListDirectory(db_path()))) {
    if (name.starts_with("MANIFEST")) {
      std::ofstream(db_path() + "/" + name, std::ios::trunc) << "not a manifest at all";
    }
  }
  Open();
  EXPECT_EQ(Must(index_->ResolveImage("app")).id, id);
}

TEST_F(IndexTest, ADamagedPackIsReportedAndStopsOnlyGarbageCollection) {
  ImageId good = AddImage("good", {AddLayer("base", {"x"})});
  auto bad = Register({.chunks = {"bad"}, .blobs = {{"bad"}}});
  std::string path =
      store_path() + "/packs/" + bad.id.ToHex().substr(0, 2) + "/" + bad.id.ToHex() + ".pack";
  ASSERT_EQ(::truncate(path.c_str(), 20), 0);
  RebuildReport report = Must(index_->Rebuild(nullptr));
  EXPECT_EQ(report.damaged, 1u);
  ASSERT_EQ(report.damaged_names.size(), 1u);
  EXPECT_THAT(report.damaged_names[0], HasSubstr(bad.id.ToHex()));
  EXPECT_EQ(report.packs, 2u);
  EXPECT_TRUE(index_->GetImage(good).ok());
  Status status = index_->CollectGarbage({}).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr(bad.id.ToHex()));
  EXPECT_TRUE(PackExists(bad.id)) << "damaged packs are never deleted";
  Reopen();
  EXPECT_TRUE(index_->GetImage(good).ok());
}

TEST_F(IndexTest, RebuildEqualsTheOriginal) {
  ImageLayer base = AddLayer("base", {"a", "b"}, DiffId("b"));
  ImageLayer top = AddLayer("top", {"b", "c"}, DiffId("t"));
  ImageId first = AddImage("first", {base});
  ImageId second = AddImage("second", {base, top});
  ImageId gone = AddImage("gone", {top});
  ASSERT_OK(index_->SetTag("one", first));
  ASSERT_OK(index_->SetTag("two:v2", second));
  ASSERT_OK(index_->DeleteImage(gone, true));

  auto describe = [&] {
    std::string text;
    Index::Stats stats = Must(index_->GetStats());
    for (uint64_t n :
         {stats.packs, stats.chunks, stats.blobs, stats.images, stats.tags, stats.store_bytes}) {
      text += std::to_string(n) + " ";
    }
    for (const ImageRecord& record : Must(index_->ListImages())) {
      text += "\n" + record.id.ToHex() + " " + std::to_string(record.published_ns);
      for (const std::string& tag : record.tags) text += " " + tag;
      for (const ImageLayer& layer : record.manifest.layers) {
        text += "\n" + HexEncode(Must(index_->GetBlobMap(layer.metadata)).Serialise());
        text += "\n" + HexEncode(Must(index_->GetBlobMap(layer.data)).Serialise());
      }
    }
    text += Must(index_->FindLayer(DiffId("b"))).has_value() ? " b" : "";
    text += Must(index_->FindLayer(DiffId("t"))).has_value() ? " t" : "";
    return text;
  };
  std::string before = describe();
  RebuildReport report = Must(index_->Rebuild(nullptr));
  EXPECT_EQ(report.images, 2u);
  EXPECT_EQ(report.tags, 2u);
  EXPECT_EQ(report.damaged, 0u);
  EXPECT_EQ(describe(), before);
  index_.reset();
  ASSERT_OK(RemoveTree(db_path()));
  Open();
  EXPECT_EQ(describe(), before);
}

}  // namespace
}  // namespace esker::testing
