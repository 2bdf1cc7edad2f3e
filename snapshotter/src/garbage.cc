// Garbage collection: mark the packs that live and leased images need, condemn the others, delete
// what has been condemned for long enough. Runs beside everything else; the moments at which it
// holds the state lock are the ones where it and the others agree (see ../README.md).
#include <algorithm>
#include <limits>

#include "base/failpoint.h"
#include "base/io.h"
#include "base/log.h"
#include "base/scope_guard.h"
#include "index_impl.h"

namespace esker {

uint64_t IndexImpl::OldestImportLocked() const {
  return live_imports_.empty() ? std::numeric_limits<uint64_t>::max() : *live_imports_.begin();
}

IndexImpl::View IndexImpl::TakeView() {
  std::unique_lock state(state_mutex_);
  touched_.emplace();
  collected_ = true;
  for (const auto& [pack, count] : pins_) touched_->insert(pack);
  return View{
      db_->NewCursor(Family::kImages), {leases_.begin(), leases_.end()}, OldestImportLocked()};
}

Result<GcReport> IndexImpl::CollectGarbage(const GcOptions& options) {
  std::shared_lock gate(gate_);
  std::lock_guard one(gc_mutex_);
  {
    std::shared_lock state(state_mutex_);
    if (!gc_enabled_) {
      return FailedPreconditionError(
          "garbage collection: nodes have not taken their leases again since the index started");
    }
  }
  if (gc_guard_) ESKER_RETURN_IF_ERROR(gc_guard_(options));
  {
    std::lock_guard catalogue(catalogue_mutex_);
    ESKER_RETURN_IF_ERROR(BeginChange());
  }
  // Packs of imports that died before they could register them.
  std::map<PackId, std::string> unreadable;
  ESKER_ASSIGN_OR_RETURN(std::vector<PackId> listed, store_.ListPacks());
  ESKER_RETURN_IF_ERROR(AdoptPacks(listed, nullptr, unreadable));
  if (!unreadable.empty()) {
    const auto& [id, why] = *unreadable.begin();
    return FailedPreconditionError(
        "garbage collection: " + std::to_string(unreadable.size()) +
        " pack(s) of the store cannot be read, and what they refer to would be taken for unused; " +
        "repair them, or move them out of packs/; first: " + id.ToHex() + ": " + why);
  }
  ESKER_RETURN_IF_ERROR(DropUnfinishedImages());
  GcReport report;
  {
    View view = TakeView();
    ScopeGuard forget_touched([&] {
      std::unique_lock state(state_mutex_);
      touched_.reset();
    });
    ESKER_ASSIGN_OR_RETURN(Marked marked, Mark(view));
    report.images_live = marked.images_live;
    ESKER_RETURN_IF_ERROR(Condemn(marked.packs, view.oldest_import));
  }
  ESKER_FAILPOINT("index.gc.condemned");
  ESKER_RETURN_IF_ERROR(SweepPacks(options.grace_ns, report));
  if (report.packs_deleted != 0) ESKER_RETURN_IF_ERROR(SweepLayers());
  ESKER_RETURN_IF_ERROR(SweepTagRecords());
  ESKER_RETURN_IF_ERROR(SweepImageRecords());
  ESKER_RETURN_IF_ERROR(SweepStartRecords());
  ESKER_ASSIGN_OR_RETURN(report.temporaries_deleted, SweepTemporaries(options.grace_ns));
  std::shared_lock state(state_mutex_);
  for (const auto& [id, pack] : packs_) {
    (pack.usable() ? report.packs_live : report.packs_condemned) += 1;
  }
  return report;
}

// --- mark ----------------------------------------------------------------------------------------

Result<IndexImpl::Marked> IndexImpl::Mark(View& view) {
  Marked marked;
  for (view.images.Seek({}); view.images.Valid(); view.images.Next()) {
    ImageId id{DigestAt(view.images.key(), 0)};
    bool leased = view.leased.contains(id);
    ESKER_ASSIGN_OR_RETURN(ImageEntry entry, ImageEntry::Decode(view.images.value()));
    if (!entry.deleted) ++marked.images_live;
    if (entry.deleted && !leased) continue;
    Result<Manifest> manifest = Manifest::FromJson(entry.manifest);
    if (!manifest.ok()) return std::move(manifest).status().Wrap("mark image " + id.ToHex());
    ESKER_RETURN_IF_ERROR(MarkImage(id, *manifest, leased, marked));
  }
  ESKER_RETURN_IF_ERROR(view.images.status());
  return marked;
}

Status IndexImpl::MarkImage(const ImageId& id, const Manifest& manifest, bool leased,
                            Marked& marked) {
  ESKER_ASSIGN_OR_RETURN(std::vector<PackId> holders, Holders(kImageHolder, id.digest));
  if (!holders.empty()) marked.packs.insert(holders.front());
  for (const ImageLayer& layer : manifest.layers) {
    ESKER_RETURN_IF_ERROR(MarkBlob(layer.metadata, leased, marked));
    if (layer.has_data()) ESKER_RETURN_IF_ERROR(MarkBlob(layer.data, leased, marked));
  }
  return OkStatus();
}

Status IndexImpl::MarkBlob(const BlobId& id, bool leased, Marked& marked) {
  // A node that has the image open may read by a map that was made from any of the holders.
  if (leased && marked.seen_leased.insert(id).second) {
    Status all = AddAllHolders(id, marked.packs);
    if (!all.ok() && all.code() != Code::kNotFound) return all;
  }
  if (!marked.seen.insert(id).second) return OkStatus();
  Result<PackSet> packs = UsablePacks(id);
  if (packs.ok()) {
    marked.packs.insert(packs->begin(), packs->end());
    return OkStatus();
  }
  if (packs.status().code() != Code::kNotFound && packs.status().code() != Code::kDataLoss) {
    return std::move(packs).status();
  }
  // A live image that is damaged, or lost a part to a condemned pack: keep whatever there is of it.
  LogWarning("live_blob_is_not_whole", {{"blob", id.ToHex()}, {"why", packs.status().message()}});
  Status all = AddAllHolders(id, marked.packs);
  return all.code() == Code::kNotFound ? OkStatus() : all;
}

// --- sweep ---------------------------------------------------------------------------------------

Status IndexImpl::Condemn(const PackSet& live, uint64_t oldest_import) {
  std::unique_lock state(state_mutex_);
  oldest_import = std::min(oldest_import, OldestImportLocked());
  const int64_t now = clock_.WallNanos();
  Database::Batch batch(*db_);
  std::vector<std::pair<PackState*, PackEntry>> changes;
  for (auto& [id, pack] : packs_) {
    if (pack.deleting) continue;
    bool keep = live.contains(id) || touched_->contains(id) || pins_.contains(id) ||
                pack.event > oldest_import;
    bool condemned = pack.entry.condemned_ns != 0;
    // Once condemned it stays so, unless an image turns out to need it.
    if (keep ? !(condemned && live.contains(id)) : condemned) continue;
    PackEntry entry = pack.entry;
    entry.condemned_ns = keep ? 0 : now;
    batch.Put(Family::kPacks, id.digest.AsBytes(), entry.Encode());
    changes.emplace_back(&pack, entry);
  }
  if (changes.empty()) return OkStatus();
  ESKER_RETURN_IF_ERROR(db_->Write(batch));
  for (auto& [pack, entry] : changes) pack->entry = entry;
  ++condemnations_;
  usable_cache_.clear();
  return OkStatus();
}

std::vector<PackId> IndexImpl::DuePacks(int64_t grace_ns) {
  std::shared_lock state(state_mutex_);
  const int64_t now = clock_.WallNanos();
  std::vector<PackId> due;
  for (const auto& [id, pack] : packs_) {
    int64_t since = pack.entry.condemned_ns;
    if (since != 0 && now - since >= grace_ns) due.push_back(id);
  }
  return due;
}

bool IndexImpl::BeginDeletion(const PackId& id) {
  std::unique_lock state(state_mutex_);
  auto it = packs_.find(id);
  // Registered again in the meantime: it lives.
  if (it == packs_.end() || it->second.entry.condemned_ns == 0) return false;
  it->second.deleting = true;
  return true;
}

Status IndexImpl::SweepPacks(int64_t grace_ns, GcReport& report) {
  std::set<std::string> directories;
  for (const PackId& id : DuePacks(grace_ns)) {
    ESKER_RETURN_IF_ERROR(CheckOwner());
    uint64_t bytes = 0;
    {
      std::shared_lock state(state_mutex_);
      if (auto it = packs_.find(id); it != packs_.end()) bytes = it->second.entry.file_bytes;
    }
    if (!BeginDeletion(id)) continue;
    Status deleted = DeletePack(id, report.images_deleted);
    {
      // After a failure, too: half forgotten it is a pack that the database does not know, and the
      // next collection adopts it and comes back to it.
      std::unique_lock state(state_mutex_);
      packs_.erase(id);
      state_changed_.notify_all();
    }
    ESKER_RETURN_IF_ERROR(deleted.Wrap("delete pack " + id.ToHex()));
    directories.insert(id.ToHex().substr(0, 2));
    report.packs_deleted += 1;
    report.bytes_deleted += bytes;
  }
  // Before any tombstone goes: a pack that a power cut brings back must find it.
  for (const std::string& directory : directories) {
    ESKER_RETURN_IF_ERROR(FsyncDirectory(store_.path() + "/packs/" + directory));
  }
  ESKER_FAILPOINT("index.gc.packs_deleted");
  return OkStatus();
}

Status IndexImpl::DeletePack(const PackId& id, uint64_t& images_gone) {
  ESKER_ASSIGN_OR_RETURN(PackContents contents, ContentsOf(id));
  ESKER_RETURN_IF_ERROR(ForgetPack(id, contents, images_gone));
  // Forgotten before it is gone: whatever happens in between, the database never answers with a
  // location that is not there.
  ESKER_FAILPOINT("index.gc.pack_forgotten");
  ESKER_RETURN_IF_ERROR(store_.RemovePack(id));
  ESKER_FAILPOINT("index.gc.pack_removed");
  return OkStatus();
}

}  // namespace esker
