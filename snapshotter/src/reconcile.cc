// Reconciliation: the database is made to say what the store says. At every start, and as a whole
// when the index is rebuilt.
#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "index_impl.h"
#include "records.h"

namespace esker {
namespace {

constexpr size_t kFootersAtOnce = 16;  // bounds memory: a large pack's footer takes some MB
constexpr size_t kReaders = 4;         // network stores answer several as fast as one
constexpr size_t kNamesReported = 100;

std::vector<Result<PackFooter>> ReadFooters(const Store& store, std::span<const PackId> packs) {
  std::vector<Result<PackFooter>> footers(packs.size(),
                                          Result<PackFooter>(InternalError("unread")));
  std::atomic<size_t> next = 0;
  auto read = [&] {
    for (size_t i; (i = next++) < packs.size();) footers[i] = ReadPackFooter(store, packs[i]);
  };
  std::vector<std::jthread> readers;
  for (size_t i = 1; i < std::min(kReaders, packs.size()); ++i) readers.emplace_back(read);
  read();
  readers.clear();
  return footers;
}

}  // namespace

Status IndexImpl::Reconcile(const Progress& on_progress,
                            std::map<PackId, std::string>& unreadable) {
  ESKER_RETURN_IF_ERROR(LoadPacks());
  // Before any pack is registered: they say which of the images in packs are deleted.
  ESKER_RETURN_IF_ERROR(LoadImageStates());
  ESKER_ASSIGN_OR_RETURN(std::vector<PackId> listed, store_.ListPacks());
  ESKER_RETURN_IF_ERROR(DropMissingPacks(listed));
  ESKER_RETURN_IF_ERROR(AdoptPacks(listed, on_progress, unreadable));
  // At a start, what is not whole is damage, which is for people to see.
  adopted_images_.clear();
  ESKER_FAILPOINT("index.reconcile.packs");
  std::lock_guard catalogue(catalogue_mutex_);
  ESKER_RETURN_IF_ERROR(ApplyImageStates());
  ESKER_RETURN_IF_ERROR(LoadTags());
  ESKER_FAILPOINT("index.reconcile.names");
  return FinishHalfDone();
}

Status IndexImpl::LoadPacks() {
  std::unique_lock state(state_mutex_);
  packs_.clear();
  usable_cache_.clear();
  ++condemnations_;
  Status decoded;
  ESKER_RETURN_IF_ERROR(
      db_->Scan(Family::kPacks, {}, [&](std::string_view key, std::string_view value) {
        Result<PackEntry> entry = PackEntry::Decode(value);
        decoded = entry.status();
        if (!entry.ok()) return false;
        packs_[PackId{DigestAt(key, 0)}] = PackState{*entry, 0, false};
        next_sequence_ = std::max(next_sequence_, entry->sequence + 1);
        return true;
      }));
  return decoded;
}

// --- packs ---------------------------------------------------------------------------------------

Status IndexImpl::DropMissingPacks(const std::vector<PackId>& listed) {
  const PackSet there(listed.begin(), listed.end());
  PackSet missing;
  for (const auto& [id, pack] : packs_) {
    if (there.contains(id)) continue;
    // A listing may be stale on a shared store; only a look-up of the name itself says it is gone.
    Result<UniqueFd> file = store_.OpenPack(id);
    if (file.ok()) continue;
    if (file.status().code() != Code::kNotFound) return std::move(file).status();
    missing.insert(id);
  }
  if (missing.empty()) return OkStatus();
  ESKER_ASSIGN_OR_RETURN(auto contents, ScanContents(missing));
  uint64_t images_gone = 0;
  for (const PackId& id : missing) {
    ESKER_RETURN_IF_ERROR(ForgetPack(id, contents[id], images_gone));
    std::unique_lock state(state_mutex_);
    packs_.erase(id);
  }
  LogInfo("packs_gone_from_store", {{"packs", missing.size()}, {"images", images_gone}});
  return OkStatus();
}

Status IndexImpl::AdoptPacks(const std::vector<PackId>& listed, const Progress& on_progress,
                             std::map<PackId, std::string>& unreadable) {
  std::vector<std::pair<int64_t, PackId>> unknown;
  for (const PackId& id : listed) {
    {
      std::shared_lock state(state_mutex_);
      if (packs_.contains(id)) continue;
    }
    Result<PackEntry> entry = StatPack(id);
    if (entry.ok()) unknown.emplace_back(entry->published_ns, id);
    // ABORTED: it went between the listing and now.
    if (!entry.ok() && entry.status().code() != Code::kAborted) {
      unreadable[id] = entry.status().ToString();
    }
  }
  // In the order of publication, so that the earliest holder answers, as before.
  std::sort(unknown.begin(), unknown.end());
  std::vector<PackId> order;
  for (const auto& [published, id] : unknown) order.push_back(id);
  for (size_t done = 0; done < order.size();) {
    auto slice = std::span(order).subspan(done, std::min(kFootersAtOnce, order.size() - done));
    std::vector<Result<PackFooter>> footers = ReadFooters(store_, slice);
    for (size_t i = 0; i < slice.size(); ++i) {
      ESKER_RETURN_IF_ERROR(AdoptPack(slice[i], footers[i], unreadable));
    }
    done += slice.size();
    if (on_progress) on_progress(done, order.size());
  }
  return OkStatus();
}

Status IndexImpl::AdoptPack(const PackId& id, const Result<PackFooter>& footer,
                            std::map<PackId, std::string>& unreadable) {
  Status readable = footer.status();
  if (footer.ok()) readable = ParseManifests(id, *footer).status();
  if (readable.ok()) {
    for (const std::string& json : footer->manifests) adopted_images_.insert({Sha256::Of(json)});
    Status registered = RegisterFooter(id, *footer);
    // ABORTED: gone meanwhile.
    return registered.code() == Code::kAborted ? OkStatus() : registered;
  }
  if (readable.code() != Code::kNotFound) unreadable[id] = readable.ToString();
  return OkStatus();
}

Result<bool> IndexImpl::IsWhole(const ImageId& id) {
  ESKER_ASSIGN_OR_RETURN(std::optional<ImageEntry> image, FindImage(id));
  if (!image) return true;  // deleted, or known by no pack: nothing to judge
  ESKER_ASSIGN_OR_RETURN(Manifest manifest, Manifest::FromJson(image->manifest));
  for (const ImageLayer& layer : manifest.layers) {
    for (const BlobId& blob : {layer.metadata, layer.data}) {
      if (blob == layer.data && !layer.has_data()) continue;
      Status placed = PlaceBlob(blob).status();
      if (placed.code() == Code::kNotFound || placed.code() == Code::kDataLoss) return false;
      ESKER_RETURN_IF_ERROR(placed);
    }
  }
  return true;
}

Status IndexImpl::DropUnfinishedImages() {
  for (const ImageId& id : std::exchange(adopted_images_, {})) {
    ESKER_ASSIGN_OR_RETURN(bool whole, IsWhole(id));
    if (whole) continue;
    LogWarning("unfinished_image_dropped", {{"image", id.ToHex()}});
    std::lock_guard catalogue(catalogue_mutex_);
    ESKER_RETURN_IF_ERROR(DeleteImageLocked(id).Wrap("drop image " + id.ToHex()));
  }
  return OkStatus();
}

// --- images and tags -----------------------------------------------------------------------------

Status IndexImpl::LoadImageStates() {
  std::lock_guard catalogue(catalogue_mutex_);
  image_states_.clear();
  unresolved_images_.clear();
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, store_.ListRecordNames(kImageSpace));
  for (const std::string& name : names) {
    Result<ImageId> id = ImageId::FromHex(name);
    if (!id.ok()) {
      LogWarning("record_ignored", {{"space", kImageSpace}, {"name", name}});
      continue;
    }
    Result<Store::Record> record = store_.LatestRecord(kImageSpace, name);
    if (!record.ok() && record.status().code() == Code::kNotFound) continue;
    Result<ImageStateRecord> state = record.ok() ? ImageStateRecord::Parse(record->content)
                                                 : Result<ImageStateRecord>(record.status());
    Result<bool> deleted = state.ok() ? ConditionHolds(*state) : Result<bool>(state.status());
    if (!deleted.ok()) {
      // Unreadable: the image stays visible, which loses nothing.
      LogWarning("record_unreadable",
                 {{"space", kImageSpace}, {"name", name}, {"why", deleted.status().ToString()}});
      continue;
    }
    image_states_[*id] = ImageState{record->number, state->deleted && *deleted};
    if (!state->with_tag.empty()) unresolved_images_.insert(*id);
  }
  return OkStatus();
}

Status IndexImpl::ApplyImageStates() {
  Database::Batch batch(*db_);
  Status decoded;
  ESKER_RETURN_IF_ERROR(
      db_->Scan(Family::kImages, {}, [&](std::string_view key, std::string_view value) {
        Result<ImageEntry> entry = ImageEntry::Decode(value);
        decoded = entry.status();
        if (!entry.ok()) return false;
        auto state = image_states_.find(ImageId{DigestAt(key, 0)});
        bool deleted = state != image_states_.end() && state->second.deleted;
        if (deleted != entry->deleted) {
          entry->deleted = deleted;
          batch.Put(Family::kImages, key, entry->Encode());
        }
        return true;
      }));
  ESKER_RETURN_IF_ERROR(decoded);
  return db_->Write(batch);
}

Status IndexImpl::LoadTags() {
  std::map<std::string, std::string> wanted;
  std::set<std::string, std::less<>> unreadable;
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, store_.ListRecordNames(kTagSpace));
  for (const std::string& name : names) {
    Result<Store::Record> record = store_.LatestRecord(kTagSpace, name);
    if (!record.ok() && record.status().code() == Code::kNotFound) continue;
    Result<TagRecord> tag =
        record.ok() ? TagRecord::Parse(name, record->content) : Result<TagRecord>(record.status());
    if (!tag.ok()) {
      LogWarning("record_unreadable",
                 {{"space", kTagSpace}, {"name", name}, {"why", tag.status().ToString()}});
      unreadable.insert(name);
      continue;
    }
    wanted[TagKey(name)] = TagEntry{record->number, tag->image}.Encode();
    if (tag->image) wanted[ImageTagKey(*tag->image, name)] = tag->job;
  }
  Database::Batch batch(*db_);
  ESKER_RETURN_IF_ERROR(
      db_->Scan(Family::kTags, {}, [&](std::string_view key, std::string_view value) {
        auto it = wanted.find(std::string(key));
        if (it == wanted.end()) {
          // Of a record that cannot be read now, what it said before is the best there is.
          if (unreadable.contains(NameOfTagKey(key))) return true;
          batch.Delete(Family::kTags, key);
        } else if (it->second == value) {
          wanted.erase(it);
        }
        return true;
      }));
  for (const auto& [key, value] : wanted) batch.Put(Family::kTags, key, value);
  return db_->Write(batch);
}

// What a crash interrupted after it had become true in the store.
Status IndexImpl::FinishHalfDone() {
  ESKER_RETURN_IF_ERROR(BeginChange());
  for (const auto& [id, state] : image_states_) {
    if (!state.deleted) continue;
    ESKER_ASSIGN_OR_RETURN(std::vector<std::string> tags, TagsOf(id));
    for (const std::string& tag : tags) ESKER_RETURN_IF_ERROR(WriteTag(tag, std::nullopt));
  }
  return OkStatus();
}

// --- rebuild -------------------------------------------------------------------------------------

Result<RebuildReport> IndexImpl::Rebuild(const Progress& on_progress) {
  std::unique_lock gate(gate_);
  ESKER_RETURN_IF_ERROR(CheckOwner());
  ESKER_RETURN_IF_ERROR(db_->Clear());
  ESKER_FAILPOINT("index.rebuild.cleared");
  std::map<PackId, std::string> unreadable;
  ESKER_RETURN_IF_ERROR(Reconcile(on_progress, unreadable));
  RebuildReport report;
  ESKER_ASSIGN_OR_RETURN(Stats stats, CountAll());
  report.packs = stats.packs;
  report.images = stats.images;
  report.tags = stats.tags;
  report.damaged = unreadable.size();
  for (const auto& [id, why] : unreadable) {
    if (report.damaged_names.size() == kNamesReported) break;
    report.damaged_names.push_back(id.ToHex() + ": " + why);
  }
  return report;
}

}  // namespace esker
