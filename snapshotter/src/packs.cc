// Registration: what a published pack holds becomes known to the index.
#include <sys/stat.h>

#include <chrono>

#include "base/failpoint.h"
#include "index_impl.h"

namespace esker {
namespace {

constexpr size_t kBatchBytes = 1u << 20;  // bounds memory; large packs take several
constexpr auto kDeletionDeadline = std::chrono::seconds(60);
constexpr int kRegisterAttempts = 3;

}  // namespace

Status IndexImpl::RegisterPack(const PackWriter::Published& pack) {
  std::shared_lock gate(gate_);
  // What is acknowledged here must be known to whoever owns the store.
  ESKER_RETURN_IF_ERROR(CheckOwner());
  return RegisterFooter(pack.id, pack.footer).Wrap("index pack " + pack.id.ToHex());
}

Status IndexImpl::RegisterFooter(const PackId& id, const PackFooter& footer) {
  for (int attempt = 0; attempt < kRegisterAttempts; ++attempt) {
    ESKER_ASSIGN_OR_RETURN(Presence presence, Revive(id));
    if (presence == Presence::kRegistered) return OkStatus();
    if (presence == Presence::kAbsent) {
      // The chunks first and without the catalogue lock: they are many, and say nothing until the
      // pack itself is registered.
      ESKER_RETURN_IF_ERROR(WriteChunks(id, footer));
      std::lock_guard catalogue(catalogue_mutex_);
      ESKER_ASSIGN_OR_RETURN(presence, RegisterFooterLocked(id, footer));
      if (presence == Presence::kRegistered) return OkStatus();
    }
    ESKER_RETURN_IF_ERROR(WaitUntilDeleted(id));
  }
  return AbortedError("garbage collection keeps removing it; import again");
}

Result<IndexImpl::Presence> IndexImpl::RegisterFooterLocked(const PackId& id,
                                                            const PackFooter& footer) {
  ESKER_ASSIGN_OR_RETURN(Presence presence, Revive(id));
  if (presence != Presence::kAbsent) return presence;
  ESKER_ASSIGN_OR_RETURN(std::vector<ParsedManifest> manifests, ParseManifests(id, footer));
  ESKER_ASSIGN_OR_RETURN(PackEntry entry, StatPack(id));
  entry.chunks = footer.chunks.size();
  ESKER_FAILPOINT("index.register.before_catalogue");
  ESKER_RETURN_IF_ERROR(WriteCatalogue(id, footer, entry, manifests));
  return Presence::kRegistered;
}

Result<IndexImpl::Presence> IndexImpl::Revive(const PackId& id) {
  std::unique_lock state(state_mutex_);
  auto it = packs_.find(id);
  if (it == packs_.end()) return Presence::kAbsent;
  PackState& pack = it->second;
  if (pack.deleting) return Presence::kDeleting;
  if (pack.entry.condemned_ns != 0) {
    PackEntry revived = pack.entry;
    revived.condemned_ns = 0;
    // Last in the order again: what live blobs chose while it was condemned stays chosen.
    revived.sequence = next_sequence_++;
    Database::Batch batch(*db_);
    batch.Put(Family::kPacks, id.digest.AsBytes(), revived.Encode());
    ESKER_RETURN_IF_ERROR(db_->Write(batch));
    pack.entry = revived;
  }
  pack.event = next_event_++;
  if (touched_) touched_->insert(id);
  return Presence::kRegistered;
}

Status IndexImpl::WaitUntilDeleted(const PackId& id) {
  std::unique_lock state(state_mutex_);
  auto gone = [&] {
    auto it = packs_.find(id);
    return it == packs_.end() || !it->second.deleting;
  };
  if (state_changed_.wait_for(state, kDeletionDeadline, gone)) return OkStatus();
  return UnavailableError("garbage collection has been removing it for a minute; try again");
}

Result<PackEntry> IndexImpl::StatPack(const PackId& id) const {
  Result<UniqueFd> file = store_.OpenPack(id);
  if (!file.ok()) {
    if (file.status().code() != Code::kNotFound) return std::move(file).status();
    return AbortedError(
        "the pack is not in the store: garbage collection removed it just now, or " +
        std::string("it is not visible on this machine yet; import again"));
  }
  struct stat status;
  if (::fstat(file->get(), &status) != 0) return ErrnoError("stat the pack");
  PackEntry entry;
  entry.file_bytes = static_cast<uint64_t>(status.st_size);
  entry.published_ns = status.st_mtim.tv_sec * 1'000'000'000LL + status.st_mtim.tv_nsec;
  return entry;
}

Result<std::vector<IndexImpl::ParsedManifest>> IndexImpl::ParseManifests(const PackId& id,
                                                                         const PackFooter& footer) {
  std::vector<ParsedManifest> manifests;
  for (const std::string& json : footer.manifests) {
    Result<Manifest> manifest = Manifest::FromJson(json);
    if (!manifest.ok()) return std::move(manifest).status().Wrap("manifest in pack " + id.ToHex());
    manifests.push_back({ImageId{Sha256::Of(json)}, json, std::move(*manifest)});
  }
  return manifests;
}

Status IndexImpl::WriteChunks(const PackId& id, const PackFooter& footer) {
  Database::Batch batch(*db_);
  for (const PackChunk& chunk : footer.chunks) {
    ChunkEntry entry{chunk.ref.length, footer.Locate(id, chunk)};
    batch.Put(Family::kChunks, PairKey(chunk.ref.digest, id.digest), entry.Encode());
    if (batch.bytes() < kBatchBytes) continue;
    ESKER_RETURN_IF_ERROR(db_->Write(batch));
    ESKER_FAILPOINT("index.register.some_chunks");
  }
  ESKER_RETURN_IF_ERROR(db_->Write(batch));
  ESKER_FAILPOINT("index.register.chunks");
  return OkStatus();
}

Status IndexImpl::WriteCatalogue(const PackId& id, const PackFooter& footer, PackEntry entry,
                                 const std::vector<ParsedManifest>& manifests) {
  Database::Batch batch(*db_);
  for (const BlobChunks& list : footer.blobs) {
    BlobId blob = list.Id();
    batch.Put(Family::kBlobs, blob.digest.AsBytes(), EncodeBlobList(list));
    batch.Put(Family::kHolders, HolderKey(kBlobHolder, blob.digest, id), {});
    if (batch.bytes() >= kBatchBytes) ESKER_RETURN_IF_ERROR(db_->Write(batch));
  }
  for (const ParsedManifest& manifest : manifests) {
    ESKER_RETURN_IF_ERROR(PutImage(batch, id, entry.published_ns, manifest));
  }
  std::unique_lock state(state_mutex_);
  entry.sequence = next_sequence_++;
  // In one batch with the images and last of all: a pack that is known is known completely.
  batch.Put(Family::kPacks, id.digest.AsBytes(), entry.Encode());
  ESKER_RETURN_IF_ERROR(db_->Write(batch));
  packs_[id] = PackState{entry, next_event_++, false};
  if (touched_) touched_->insert(id);
  return OkStatus();
}

Status IndexImpl::PutImage(Database::Batch& batch, const PackId& pack, int64_t published_ns,
                           const ParsedManifest& parsed) {
  const std::string_view key = parsed.id.digest.AsBytes();
  ESKER_ASSIGN_OR_RETURN(bool known, db_->Has(Family::kImages, key));
  if (!known) {
    auto state = image_states_.find(parsed.id);
    bool deleted = state != image_states_.end() && state->second.deleted;
    batch.Put(Family::kImages, key, ImageEntry{deleted, published_ns, parsed.json}.Encode());
    if (Result<ImageId> parent = ImageId::FromHex(parsed.manifest.parent); parent.ok()) {
      batch.Put(Family::kLineage, PairKey(parent->digest, parsed.id.digest), {});
    }
  }
  batch.Put(Family::kHolders, HolderKey(kImageHolder, parsed.id.digest, pack), {});
  for (const ImageLayer& layer : parsed.manifest.layers) {
    if (!layer.diff_id.empty()) batch.Put(Family::kLayers, layer.diff_id, EncodeLayer(layer));
  }
  return OkStatus();
}

}  // namespace esker
