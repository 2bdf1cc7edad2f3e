// Images: publication, lookup, deletion.
#include <algorithm>
#include <map>

#include "base/failpoint.h"
#include "base/log.h"
#include "index_impl.h"
#include "names.h"
#include "records.h"

namespace esker {
namespace {

constexpr size_t kMinPrefix = 12;
constexpr size_t kHexDigits = 64;
constexpr int kPublishAttempts = 3;

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

uint64_t PlainBytes(const Manifest& manifest) {
  uint64_t bytes = 0;
  for (const ImageLayer& layer : manifest.layers) bytes += layer.metadata_bytes + layer.data_bytes;
  return bytes;
}

}  // namespace

Status IndexImpl::CheckOwner() { return store_.CheckOwnership(epoch_); }

// --- lookup --------------------------------------------------------------------------------------

Result<std::optional<ImageEntry>> IndexImpl::FindImage(const ImageId& id) {
  ESKER_ASSIGN_OR_RETURN(std::optional<std::string> bytes,
                         db_->Get(Family::kImages, id.digest.AsBytes()));
  if (!bytes) return std::optional<ImageEntry>();
  ESKER_ASSIGN_OR_RETURN(ImageEntry entry, ImageEntry::Decode(*bytes));
  if (entry.deleted) return std::optional<ImageEntry>();
  return std::optional<ImageEntry>(std::move(entry));
}

Result<ImageRecord> IndexImpl::MakeRecord(const ImageId& id, const ImageEntry& entry) {
  ImageRecord record;
  record.id = id;
  record.published_ns = entry.published_ns;
  Result<Manifest> manifest = Manifest::FromJson(entry.manifest);
  if (!manifest.ok()) return std::move(manifest).status().Wrap("image " + id.ToHex());
  record.manifest = std::move(*manifest);
  record.plain_bytes = PlainBytes(record.manifest);
  return record;
}

Result<ImageRecord> IndexImpl::GetImage(const ImageId& id) {
  std::shared_lock gate(gate_);
  return GetImageUngated(id);
}

Result<ImageRecord> IndexImpl::GetImageUngated(const ImageId& id) {
  ESKER_ASSIGN_OR_RETURN(std::optional<ImageEntry> entry, FindImage(id));
  if (!entry) return NotFoundError("there is no image " + id.ToHex());
  ESKER_ASSIGN_OR_RETURN(ImageRecord record, MakeRecord(id, *entry));
  ESKER_RETURN_IF_ERROR(AddTags(record));
  return record;
}

Result<std::optional<ImageRecord>> IndexImpl::FindByPrefix(const std::string& hex,
                                                           const ImageView& view) {
  // Half a byte more than the digits say is compared by text.
  Result<std::string> prefix = HexDecode(hex.substr(0, hex.size() / 2 * 2));
  if (!prefix.ok()) return std::move(prefix).status();
  std::vector<ImageRecord> found;
  Status failed;
  ESKER_RETURN_IF_ERROR(db_->Scan(Family::kImages, *prefix, [&](std::string_view key, auto) {
    ImageId id{DigestAt(key, 0)};
    if (!id.ToHex().starts_with(hex)) return true;
    Result<ImageRecord> record = GetImageUngated(id);
    if (!record.ok() && record.status().code() != Code::kNotFound) failed = record.status();
    if (record.ok() && RestrictToView(view, *record)) found.push_back(std::move(*record));
    return failed.ok() && found.size() < 2;
  }));
  ESKER_RETURN_IF_ERROR(failed);
  if (found.size() > 1) {
    return InvalidArgumentError("image id " + hex + " is ambiguous: " + found[0].id.ToHex() + ", " +
                                found[1].id.ToHex() + ", ...; give more digits");
  }
  if (found.empty()) return std::optional<ImageRecord>();
  return std::optional<ImageRecord>(std::move(found[0]));
}

Result<std::optional<ImageRecord>> IndexImpl::FindByName(
    const std::vector<std::string>& full_names) {
  for (const std::string& full_name : full_names) {
    ESKER_ASSIGN_OR_RETURN(std::optional<TagEntry> tag, FindTag(full_name));
    if (!tag || !tag->image) continue;
    Result<ImageRecord> record = GetImageUngated(*tag->image);
    if (record.ok()) return std::optional<ImageRecord>(std::move(*record));
    if (record.status().code() != Code::kNotFound) return std::move(record).status();
    if (!image_known_deleted(*tag->image)) {
      return DataLossError("tag " + full_name + " names image " + tag->image->ToHex() +
                           ", whose manifest is in no readable pack of the store");
    }
  }
  return std::optional<ImageRecord>();
}

Result<ImageRecord> IndexImpl::ResolveImage(const std::string& reference, const ImageView& view) {
  std::shared_lock gate(gate_);
  std::string hex = reference.starts_with("sha256:") ? reference.substr(7) : reference;
  bool may_be_id = hex.size() >= kMinPrefix && hex.size() <= kHexDigits && IsHex(hex);
  Result<std::string> full_name = NormaliseTag(reference);
  if (!full_name.ok() && !may_be_id) return std::move(full_name).status();
  std::optional<ImageRecord> found;
  if (full_name.ok()) {
    ESKER_ASSIGN_OR_RETURN(found, FindByName(NamesToTry(*full_name, view)));
    if (found) RestrictToView(view, *found);
  }
  if (!found && may_be_id) {
    ESKER_ASSIGN_OR_RETURN(found, FindByPrefix(hex, view));
  }
  if (!found) return NoSuchImage(full_name.ok() ? *full_name : reference, view);
  return std::move(*found);
}

bool IndexImpl::image_known_deleted(const ImageId& id) {
  Result<bool> has = db_->Has(Family::kImages, id.digest.AsBytes());
  return has.ok() && *has;
}

Status IndexImpl::NoSuchImage(const std::string& reference, const ImageView& view) {
  std::string message = "there is no image " + reference;
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, AllTagNames());
  std::erase_if(names, [&](const std::string& name) { return !ShowsName(view, name); });
  std::vector<std::string> nearest = NearestNames(reference, names);
  if (names.empty()) message += "; no image has a name yet";
  for (size_t i = 0; i < nearest.size(); ++i) {
    message += (i == 0 ? "; nearest: " : ", ") + nearest[i];
  }
  return NotFoundError(message);
}

Result<std::vector<ImageRecord>> IndexImpl::ListImages() {
  std::shared_lock gate(gate_);
  std::map<ImageId, ImageRecord> names;  // only tags and jobs
  ESKER_RETURN_IF_ERROR(
      db_->Scan(Family::kTags, "i", [&](std::string_view key, std::string_view job) {
        ImageRecord& of = names[ImageId{DigestAt(key, 1)}];
        of.tags.emplace_back(NameOfTagKey(key));
        if (!job.empty()) of.jobs[of.tags.back()] = job;
        return true;
      }));
  std::vector<ImageRecord> records;
  ESKER_RETURN_IF_ERROR(
      db_->Scan(Family::kImages, {}, [&](std::string_view key, std::string_view value) {
        ImageId id{DigestAt(key, 0)};
        Result<ImageEntry> entry = ImageEntry::Decode(value);
        if (entry.ok() && entry->deleted) return true;
        Result<ImageRecord> record =
            entry.ok() ? MakeRecord(id, *entry) : Result<ImageRecord>(entry.status());
        if (!record.ok()) {
          // One broken image must not hide the others.
          LogWarning("image_not_listed",
                     {{"image", id.ToHex()}, {"why", record.status().ToString()}});
          return true;
        }
        record->tags = std::move(names[id].tags);
        record->jobs = std::move(names[id].jobs);
        records.push_back(std::move(*record));
        return true;
      }));
  std::sort(records.begin(), records.end(), [](const ImageRecord& a, const ImageRecord& b) {
    return std::tie(a.published_ns, a.id) < std::tie(b.published_ns, b.id);
  });
  return records;
}

Result<std::vector<ImageId>> IndexImpl::ListChildren(const ImageId& id) {
  std::shared_lock gate(gate_);
  std::vector<ImageId> children;
  Status failed;
  ESKER_RETURN_IF_ERROR(
      db_->Scan(Family::kLineage, id.digest.AsBytes(), [&](std::string_view key, auto) {
        ImageId child{DigestAt(key, sizeof(Digest::bytes))};
        Result<std::optional<ImageEntry>> entry = FindImage(child);
        failed = entry.status();
        if (entry.ok() && *entry) children.push_back(child);
        return failed.ok();
      }));
  ESKER_RETURN_IF_ERROR(failed);
  return children;
}

// --- publication ---------------------------------------------------------------------------------

Result<ImageId> IndexImpl::PublishImage(const Manifest& manifest) {
  std::shared_lock gate(gate_);
  for (int attempt = 1;; ++attempt) {
    std::optional<PackId> deleting;
    {
      std::lock_guard catalogue(catalogue_mutex_);
      Result<ImageId> id = PublishLocked(manifest, deleting);
      if (id.ok() || !deleting || attempt == kPublishAttempts) {
        if (id.ok()) return id;
        return std::move(id).status().Wrap("publish image " + manifest.Id().ToHex());
      }
    }
    ESKER_RETURN_IF_ERROR(WaitUntilDeleted(*deleting));
  }
}

Result<ImageId> IndexImpl::PublishLocked(const Manifest& manifest,
                                         std::optional<PackId>& deleting) {
  ESKER_RETURN_IF_ERROR(BeginChange());
  std::string json = manifest.ToJson();
  // What we would refuse to read must not get into the store.
  if (Status valid = Manifest::FromJson(json).status(); !valid.ok()) {
    return std::move(valid).WithCode(Code::kInvalidArgument);
  }
  const ImageId id{Sha256::Of(json)};
  ESKER_ASSIGN_OR_RETURN(std::optional<ImageEntry> live, FindImage(id));
  if (live) return id;

  PinSet pins(*this);
  for (const ImageLayer& layer : manifest.layers) {
    ESKER_RETURN_IF_ERROR(pins.PinBlob(layer.metadata));
    if (layer.has_data()) ESKER_RETURN_IF_ERROR(pins.PinBlob(layer.data));
  }
  // A deleted image whose manifest is still here needs no second one.
  ESKER_ASSIGN_OR_RETURN(std::vector<PackId> holders, Holders(kImageHolder, id.digest));
  if (holders.empty() || !pins.PinAll({holders.front()})) {
    ESKER_RETURN_IF_ERROR(PublishPackLocked(id, std::move(json), deleting).status());
  }
  // From here on the manifest is in the store; a tombstone still hides it until the newer record.
  auto state = image_states_.find(id);
  if (state != image_states_.end() && state->second.deleted) {
    ESKER_RETURN_IF_ERROR(WriteImageState(id, false));
  }
  ESKER_FAILPOINT("index.publish.done");
  return id;
}

Result<ImageId> IndexImpl::PublishPackLocked(const ImageId& id, std::string json,
                                             std::optional<PackId>& deleting) {
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<PackWriter> writer, PackWriter::Create(store_));
  writer->AddManifest(std::move(json));
  ESKER_FAILPOINT("index.publish.before_pack");
  ESKER_ASSIGN_OR_RETURN(PackWriter::Published pack, writer->Finish());
  ESKER_FAILPOINT("index.publish.after_pack");
  ESKER_ASSIGN_OR_RETURN(Presence presence, RegisterFooterLocked(pack.id, pack.footer));
  if (presence == Presence::kDeleting) {
    deleting = pack.id;
    return AbortedError("garbage collection is removing its manifest; publish it again");
  }
  return id;
}

// --- deletion ------------------------------------------------------------------------------------

Status IndexImpl::PublishImageState(const ImageId& id, const ImageStateRecord& record) {
  ESKER_FAILPOINT("index.image_state.before_record");
  ESKER_ASSIGN_OR_RETURN(
      uint64_t number, PublishNextRecord(store_, kImageSpace, id.ToHex(), image_states_[id].number,
                                         record.Encode()));
  image_states_[id].number = number;
  ESKER_FAILPOINT("index.image_state.after_record");
  return OkStatus();
}

Status IndexImpl::WriteImageState(const ImageId& id, bool deleted) {
  ESKER_RETURN_IF_ERROR(PublishImageState(id, {.deleted = deleted}));
  image_states_[id].deleted = deleted;
  ESKER_ASSIGN_OR_RETURN(std::optional<std::string> bytes,
                         db_->Get(Family::kImages, id.digest.AsBytes()));
  if (!bytes) return OkStatus();
  ESKER_ASSIGN_OR_RETURN(ImageEntry entry, ImageEntry::Decode(*bytes));
  entry.deleted = deleted;
  Database::Batch batch(*db_);
  batch.Put(Family::kImages, id.digest.AsBytes(), entry.Encode());
  return db_->Write(batch);
}

Result<bool> IndexImpl::ConditionHolds(const ImageStateRecord& record) {
  if (record.with_tag.empty()) return true;
  Result<Store::Record> tag = store_.LatestRecord(kTagSpace, record.with_tag);
  if (tag.ok()) return tag->number >= record.at_number;
  // The tag was removed, and its records collected since.
  if (tag.status().code() == Code::kNotFound) return true;
  return std::move(tag).status();
}

Status IndexImpl::BeginChange() {
  ESKER_RETURN_IF_ERROR(CheckOwner());
  while (!unresolved_images_.empty()) {
    const ImageId id = *unresolved_images_.begin();
    ESKER_RETURN_IF_ERROR(ResolveImageState(id).Wrap("finish the deletion of " + id.ToHex()));
    unresolved_images_.erase(id);
  }
  return OkStatus();
}

Status IndexImpl::ResolveImageState(const ImageId& id) {
  Result<Store::Record> latest = store_.LatestRecord(kImageSpace, id.ToHex());
  if (!latest.ok()) {
    return latest.status().code() == Code::kNotFound ? OkStatus() : std::move(latest).status();
  }
  image_states_[id].number = latest->number;
  ESKER_ASSIGN_OR_RETURN(ImageStateRecord record, ImageStateRecord::Parse(latest->content));
  if (record.with_tag.empty()) return OkStatus();
  ESKER_ASSIGN_OR_RETURN(bool holds, ConditionHolds(record));
  return WriteImageState(id, holds);
}

Status IndexImpl::DeleteImageLocked(const ImageId& id) {
  // The tombstone first: it is the deletion. Tags that a crash leaves behind are removed at the
  // next start; the other order could end with an image that lost its name and lives.
  ESKER_RETURN_IF_ERROR(WriteImageState(id, true));
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> tags, TagsOf(id));
  for (const std::string& tag : tags) ESKER_RETURN_IF_ERROR(WriteTag(tag, std::nullopt));
  return OkStatus();
}

Status IndexImpl::DeleteImage(const ImageId& id, bool force) {
  std::shared_lock gate(gate_);
  std::lock_guard catalogue(catalogue_mutex_);
  ESKER_RETURN_IF_ERROR(BeginChange());
  ESKER_ASSIGN_OR_RETURN(std::optional<ImageEntry> image, FindImage(id));
  if (!image) return NotFoundError("delete: there is no image " + id.ToHex());
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> tags, TagsOf(id));
  if (!tags.empty() && !force) {
    return FailedPreconditionError("image " + id.ToHex() + " has " + std::to_string(tags.size()) +
                                   " tag(s), first " + tags.front() +
                                   "; remove them first, or force it");
  }
  return DeleteImageLocked(id).Wrap("delete image " + id.ToHex());
}

}  // namespace esker
