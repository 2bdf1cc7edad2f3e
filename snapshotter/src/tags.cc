// Tags: mutable names, each change a numbered record in the store.
#include "base/failpoint.h"
#include "base/id.h"
#include "index_impl.h"
#include "records.h"

namespace esker {

Result<std::optional<TagEntry>> IndexImpl::FindTag(const std::string& full_name) {
  ESKER_ASSIGN_OR_RETURN(std::optional<std::string> bytes,
                         db_->Get(Family::kTags, TagKey(full_name)));
  if (!bytes) return std::optional<TagEntry>();
  ESKER_ASSIGN_OR_RETURN(TagEntry entry, TagEntry::Decode(*bytes));
  return std::optional<TagEntry>(entry);
}

Result<std::vector<std::string>> IndexImpl::TagsOf(const ImageId& id) {
  std::vector<std::string> names;
  const std::string prefix = ImageTagPrefix(id);
  ESKER_RETURN_IF_ERROR(db_->Scan(Family::kTags, prefix, [&](std::string_view key, auto) {
    names.emplace_back(key.substr(prefix.size()));
    return true;
  }));
  return names;
}

Status IndexImpl::AddTags(ImageRecord& record) {
  const std::string prefix = ImageTagPrefix(record.id);
  return db_->Scan(Family::kTags, prefix, [&](std::string_view key, std::string_view job) {
    record.tags.emplace_back(key.substr(prefix.size()));
    if (!job.empty()) record.jobs[record.tags.back()] = job;
    return true;
  });
}

Result<std::vector<std::string>> IndexImpl::AllTagNames() {
  std::vector<std::string> names;
  ESKER_RETURN_IF_ERROR(db_->Scan(Family::kTags, "i", [&](std::string_view key, auto) {
    names.emplace_back(NameOfTagKey(key));
    return true;
  }));
  return names;
}

Status IndexImpl::WriteTag(const std::string& full_name, const std::optional<ImageId>& image,
                           const std::string& job) {
  ESKER_ASSIGN_OR_RETURN(std::optional<TagEntry> current, FindTag(full_name));
  ESKER_FAILPOINT("index.tag.before_record");
  const TagRecord record{image, std::string(ProjectOfName(full_name)), job};
  ESKER_ASSIGN_OR_RETURN(uint64_t number,
                         PublishNextRecord(store_, kTagSpace, full_name,
                                           current ? current->number : 0, record.Encode()));
  ESKER_FAILPOINT("index.tag.after_record");
  Database::Batch batch(*db_);
  batch.Put(Family::kTags, TagKey(full_name), TagEntry{number, image}.Encode());
  if (current && current->image) {
    batch.Delete(Family::kTags, ImageTagKey(*current->image, full_name));
  }
  if (image) batch.Put(Family::kTags, ImageTagKey(*image, full_name), job);
  return db_->Write(batch);
}

Result<bool> IndexImpl::GoesWithItsTag(const ImageId& id) {
  ESKER_ASSIGN_OR_RETURN(std::optional<ImageEntry> image, FindImage(id));
  if (!image) return false;
  ESKER_ASSIGN_OR_RETURN(Manifest manifest, Manifest::FromJson(image->manifest));
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> tags, TagsOf(id));
  return manifest.kind == "image" && tags.size() == 1;
}

Status IndexImpl::ChangeTag(const std::string& full_name, const TagEntry* current,
                            const std::optional<ImageId>& image, const std::string& job) {
  bool drops = false;
  if (current != nullptr && current->image) {
    ESKER_ASSIGN_OR_RETURN(drops, GoesWithItsTag(*current->image));
  }
  if (!drops) return WriteTag(full_name, image, job);
  const ImageId dropped = *current->image;
  // Three records, of which the second, the tag's own, decides: before it the first means nothing,
  // after it the image is deleted. The third takes the condition away, since the tag's numbers may
  // start again once its records were collected.
  unresolved_images_.insert(dropped);
  ESKER_RETURN_IF_ERROR(PublishImageState(
      dropped, {.deleted = true, .with_tag = full_name, .at_number = current->number + 1}));
  ESKER_FAILPOINT("index.tag.drop_prepared");
  ESKER_RETURN_IF_ERROR(WriteTag(full_name, image, job));
  ESKER_FAILPOINT("index.tag.drop_decided");
  ESKER_RETURN_IF_ERROR(WriteImageState(dropped, true));
  unresolved_images_.erase(dropped);
  return OkStatus();
}

Status IndexImpl::SetTag(const std::string& name, const ImageId& id, const std::string& job) {
  std::shared_lock gate(gate_);
  ESKER_ASSIGN_OR_RETURN(std::string full_name, NormaliseTag(name));
  if (!job.empty()) ESKER_RETURN_IF_ERROR(CheckIdentifier("job", job));
  std::lock_guard catalogue(catalogue_mutex_);
  ESKER_RETURN_IF_ERROR(BeginChange());
  ESKER_ASSIGN_OR_RETURN(std::optional<ImageEntry> image, FindImage(id));
  if (!image) return NotFoundError("tag " + full_name + ": there is no image " + id.ToHex());
  ESKER_ASSIGN_OR_RETURN(std::optional<TagEntry> current, FindTag(full_name));
  if (current && current->image == id) return OkStatus();
  return ChangeTag(full_name, current ? &*current : nullptr, id, job).Wrap("tag " + full_name);
}

Status IndexImpl::DeleteTag(const std::string& name) {
  std::shared_lock gate(gate_);
  ESKER_ASSIGN_OR_RETURN(std::string full_name, NormaliseTag(name));
  std::lock_guard catalogue(catalogue_mutex_);
  ESKER_RETURN_IF_ERROR(BeginChange());
  ESKER_ASSIGN_OR_RETURN(std::optional<TagEntry> current, FindTag(full_name));
  if (!current || !current->image) return NoSuchImage(full_name, {});
  return ChangeTag(full_name, &*current, std::nullopt).Wrap("remove tag " + full_name);
}

}  // namespace esker
