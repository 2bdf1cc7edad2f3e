// Forgetting: what goes from the database and from the store's records when packs go.
#include <algorithm>

#include "base/failpoint.h"
#include "base/io.h"
#include "base/log.h"
#include "imagefs/record_spaces.h"
#include "index_impl.h"
#include "records.h"

namespace esker {
namespace {

constexpr size_t kBatchBytes = 1u << 20;
constexpr int64_t kOldTemporarySeconds = 24 * 3600;

}  // namespace

Result<IndexImpl::PackContents> IndexImpl::ContentsOf(const PackId& id) {
  Result<PackFooter> footer = ReadPackFooter(store_, id);
  if (!footer.ok()) {
    ESKER_ASSIGN_OR_RETURN(auto scanned, ScanContents({id}));
    return std::move(scanned[id]);
  }
  PackContents contents;
  for (const PackChunk& chunk : footer->chunks) contents.chunks.push_back(chunk.ref.digest);
  for (const BlobChunks& blob : footer->blobs) contents.blobs.push_back(blob.Id());
  for (const std::string& json : footer->manifests) {
    contents.images.push_back(ImageId{Sha256::Of(json)});
  }
  return contents;
}

Result<std::map<PackId, IndexImpl::PackContents>> IndexImpl::ScanContents(const PackSet& packs) {
  std::map<PackId, PackContents> contents;
  constexpr size_t kDigestBytes = sizeof(Digest::bytes);
  ESKER_RETURN_IF_ERROR(db_->Scan(Family::kChunks, {}, [&](std::string_view key, auto) {
    PackId pack{DigestAt(key, kDigestBytes)};
    if (packs.contains(pack)) contents[pack].chunks.push_back(DigestAt(key, 0));
    return true;
  }));
  ESKER_RETURN_IF_ERROR(db_->Scan(Family::kHolders, {}, [&](std::string_view key, auto) {
    PackId pack{DigestAt(key, 1 + kDigestBytes)};
    if (!packs.contains(pack)) return true;
    Digest id = DigestAt(key, 1);
    if (key[0] == kBlobHolder) contents[pack].blobs.push_back(BlobId{id});
    if (key[0] == kImageHolder) contents[pack].images.push_back(ImageId{id});
    return true;
  }));
  return contents;
}

Status IndexImpl::ForgetPack(const PackId& id, const PackContents& contents,
                             uint64_t& images_gone) {
  Database::Batch batch(*db_);
  // First of all: a pack of which only a part is left must not pass for a registered one.
  batch.Delete(Family::kPacks, id.digest.AsBytes());
  for (const Digest& chunk : contents.chunks) {
    batch.Delete(Family::kChunks, PairKey(chunk, id.digest));
    if (batch.bytes() >= kBatchBytes) ESKER_RETURN_IF_ERROR(db_->Write(batch));
  }
  ESKER_RETURN_IF_ERROR(db_->Write(batch));
  ESKER_FAILPOINT("index.gc.chunks_forgotten");
  std::lock_guard catalogue(catalogue_mutex_);
  for (const BlobId& blob : contents.blobs) {
    bool last = false;
    ESKER_RETURN_IF_ERROR(ForgetHolder(batch, kBlobHolder, blob.digest, id, last));
    if (last) batch.Delete(Family::kBlobs, blob.digest.AsBytes());
  }
  for (const ImageId& image : contents.images) {
    bool last = false;
    ESKER_RETURN_IF_ERROR(ForgetHolder(batch, kImageHolder, image.digest, id, last));
    if (!last) continue;
    ESKER_RETURN_IF_ERROR(ForgetImage(batch, image));
    ++images_gone;
  }
  return db_->Write(batch);
}

Status IndexImpl::ForgetHolder(Database::Batch& batch, char kind, const Digest& id,
                               const PackId& pack, bool& last) {
  const std::string own = HolderKey(kind, id, pack);
  batch.Delete(Family::kHolders, own);
  last = true;
  return db_->Scan(Family::kHolders, HolderPrefix(kind, id), [&](std::string_view key, auto) {
    last = key == own;
    return last;
  });
}

Status IndexImpl::ForgetImage(Database::Batch& batch, const ImageId& id) {
  ESKER_ASSIGN_OR_RETURN(std::optional<std::string> bytes,
                         db_->Get(Family::kImages, id.digest.AsBytes()));
  if (!bytes) return OkStatus();
  batch.Delete(Family::kImages, id.digest.AsBytes());
  ESKER_ASSIGN_OR_RETURN(ImageEntry entry, ImageEntry::Decode(*bytes));
  ESKER_ASSIGN_OR_RETURN(Manifest manifest, Manifest::FromJson(entry.manifest));
  if (Result<ImageId> parent = ImageId::FromHex(manifest.parent); parent.ok()) {
    batch.Delete(Family::kLineage, PairKey(parent->digest, id.digest));
  }
  return OkStatus();
}

Status IndexImpl::SweepLayers() {
  Database::Batch batch(*db_);
  Status failed;
  ESKER_RETURN_IF_ERROR(
      db_->Scan(Family::kLayers, {}, [&](std::string_view key, std::string_view value) {
        Result<ImageLayer> layer = DecodeLayer(value);
        auto has = [&](const BlobId& id) {
          Result<bool> there = db_->Has(Family::kBlobs, id.digest.AsBytes());
          if (!there.ok()) failed = there.status();
          return there.ok() && *there;
        };
        bool whole = layer.ok() && has(layer->metadata) && (!layer->has_data() || has(layer->data));
        if (!whole) batch.Delete(Family::kLayers, key);
        return failed.ok();
      }));
  ESKER_RETURN_IF_ERROR(failed);
  return db_->Write(batch);
}

Status IndexImpl::SweepTagRecords() {
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, store_.ListRecordNames(kTagSpace));
  for (const std::string& name : names) {
    ESKER_RETURN_IF_ERROR(SweepTagRecord(name).Wrap("remove the records of tag " + name));
  }
  return OkStatus();
}

Status IndexImpl::SweepTagRecord(const std::string& name) {
  std::lock_guard catalogue(catalogue_mutex_);
  ESKER_ASSIGN_OR_RETURN(std::optional<TagEntry> entry, FindTag(name));
  if (entry && entry->image) return OkStatus();
  if (!entry) {
    // What a removal that was interrupted leaves is an empty name; a record we could not read
    // stays.
    if (store_.LatestRecord(kTagSpace, name).status().code() != Code::kNotFound) return OkStatus();
  }
  ESKER_FAILPOINT("index.gc.before_tag_records");
  ESKER_RETURN_IF_ERROR(store_.RemoveRecords(kTagSpace, name));
  ESKER_FAILPOINT("index.gc.after_tag_records");
  Database::Batch batch(*db_);
  batch.Delete(Family::kTags, TagKey(name));
  return db_->Write(batch);
}

Status IndexImpl::SweepImageRecords() {
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, store_.ListRecordNames(kImageSpace));
  for (const std::string& name : names) {
    Result<ImageId> id = ImageId::FromHex(name);
    if (!id.ok()) continue;
    std::lock_guard catalogue(catalogue_mutex_);
    ESKER_ASSIGN_OR_RETURN(bool known, db_->Has(Family::kImages, id->digest.AsBytes()));
    if (known) continue;
    ESKER_FAILPOINT("index.gc.before_image_records");
    ESKER_RETURN_IF_ERROR(store_.RemoveRecords(kImageSpace, name).Wrap("image " + name));
    ESKER_FAILPOINT("index.gc.after_image_records");
    image_states_.erase(*id);
  }
  return OkStatus();
}

// Nodes write them beside an image that may be deleted at that moment: then the next collection
// finds them. They are never needed, so there is no order to keep.
Status IndexImpl::SweepStartRecords() {
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, store_.ListRecordNames(kStartRecordSpace));
  for (const std::string& name : names) {
    Result<ImageId> id = ImageId::FromHex(name);
    if (!id.ok()) continue;
    ESKER_ASSIGN_OR_RETURN(bool known, db_->Has(Family::kImages, id->digest.AsBytes()));
    if (known) continue;
    ESKER_RETURN_IF_ERROR(
        store_.RemoveRecords(kStartRecordSpace, name).Wrap("start records of image " + name));
  }
  return OkStatus();
}

Result<uint64_t> IndexImpl::SweepTemporaries(int64_t grace_ns) {
  const std::string directory = store_.path() + "/tmp";
  // All temporary files of this index's own are made under the catalogue lock or by imports.
  std::lock_guard catalogue(catalogue_mutex_);
  std::unique_lock state(state_mutex_);
  bool all = grace_ns == 0 && live_imports_.empty();
  if (!all) state.unlock();
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> before, ListDirectory(directory));
  ESKER_RETURN_IF_ERROR(store_.SweepTemporaries(all ? 0 : kOldTemporarySeconds));
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> after, ListDirectory(directory));
  uint64_t gone = 0;
  for (const std::string& name : before) {
    if (!std::binary_search(after.begin(), after.end(), name)) ++gone;
  }
  return gone;
}

}  // namespace esker
