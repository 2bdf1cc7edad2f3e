// Tags: mutable names, each change a numbered record in the store.
#include "base/failpoint.h"
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

Result<std::vector<std::string>> IndexImpl::AllTagNames() {
  std::vector<std::string> names;
  constexpr size_t kNameAt = 1 + sizeof(Digest::bytes);
  ESKER_RETURN_IF_ERROR(db_->Scan(Family::kTags, "i", [&](std::string_view key, auto) {
    names.emplace_back(key.substr(kNameAt));
    return true;
  }));
  return names;
}

Status IndexImpl::WriteTag(const std::string& full_name, const std::optional<ImageId>& image) {
  ESKER_ASSIGN_OR_RETURN(std::optional<TagEntry> current, FindTag(full_name));
  TagRecord record;
  record.image = image;
  // So that a start after a crash can finish what the loss of the name means for the old image.
  if (current && current->image) record.replaces = current->image;
  ESKER_FAILPOINT("index.tag.before_record");
  ESKER_ASSIGN_OR_RETURN(uint64_t number,
                         PublishNextRecord(store_, kTagSpace, full_name,
                                           current ? current->number : 0, record.Encode()));
  ESKER_FAILPOINT("index.tag.after_record");
  Database::Batch batch(*db_);
  batch.Put(Family::kTags, TagKey(full_name), TagEntry{number, image}.Encode());
  if (record.replaces) batch.Delete(Family::kTags, ImageTagKey(*record.replaces, full_name));
  if (image) batch.Put(Family::kTags, ImageTagKey(*image, full_name), {});
  return db_->Write(batch);
}

Status IndexImpl::SetTag(const std::string& name, const ImageId& id) {
  std::shared_lock gate(gate_);
  ESKER_ASSIGN_OR_RETURN(std::string full_name, NormaliseTag(name));
  std::lock_guard catalogue(catalogue_mutex_);
  ESKER_RETURN_IF_ERROR(CheckOwner());
  ESKER_ASSIGN_OR_RETURN(std::optional<ImageEntry> image, FindImage(id));
  if (!image) return NotFoundError("tag " + full_name + ": there is no image " + id.ToHex());
  ESKER_ASSIGN_OR_RETURN(std::optional<TagEntry> current, FindTag(full_name));
  if (current && current->image == id) return OkStatus();
  ESKER_RETURN_IF_ERROR(WriteTag(full_name, id).Wrap("tag " + full_name));
  if (!current || !current->image) return OkStatus();
  ESKER_FAILPOINT("index.tag.before_drop");
  return DropIfUntagged(*current->image).Wrap("tag " + full_name + ": drop the image it had");
}

Status IndexImpl::DeleteTag(const std::string& name) {
  std::shared_lock gate(gate_);
  ESKER_ASSIGN_OR_RETURN(std::string full_name, NormaliseTag(name));
  std::lock_guard catalogue(catalogue_mutex_);
  ESKER_RETURN_IF_ERROR(CheckOwner());
  ESKER_ASSIGN_OR_RETURN(std::optional<TagEntry> current, FindTag(full_name));
  if (!current || !current->image) return NoSuchImage(name);
  ESKER_RETURN_IF_ERROR(WriteTag(full_name, std::nullopt).Wrap("remove tag " + full_name));
  ESKER_FAILPOINT("index.tag.before_drop");
  return DropIfUntagged(*current->image).Wrap("remove tag " + full_name);
}

}  // namespace esker
