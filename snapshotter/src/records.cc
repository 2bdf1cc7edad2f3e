#include "records.h"

#include <charconv>

#include "base/id.h"
#include "snapshotter/index.h"

namespace esker {
namespace {

constexpr std::string_view kDeleted = "deleted\n";
constexpr std::string_view kLive = "live\n";
constexpr std::string_view kTagForm2 = "tag 2\n";
constexpr std::string_view kImageWord = "image ";
constexpr std::string_view kProjectWord = "project ";
constexpr std::string_view kJobWord = "job ";
constexpr std::string_view kDeletedWith = "deleted with ";

// Takes `word` off the front and the end of line off the back; false if they are not there.
bool TakeLine(std::string_view word, std::string_view& content) {
  if (!content.starts_with(word) || !content.ends_with('\n')) return false;
  content = content.substr(word.size(), content.size() - word.size() - 1);
  return true;
}

// The first line without its end, taken off; all of it if there is none.
std::string_view NextLine(std::string_view& content) {
  std::string_view line = content.substr(0, content.find('\n') + 1);
  if (line.empty()) line = content;
  content.remove_prefix(line.size());
  return line;
}

// `project` and `job` lines, in this order, each there or not.
Status ParseOwner(std::string_view content, TagRecord& record) {
  for (auto [word, field] : {std::pair(kProjectWord, &record.project), {kJobWord, &record.job}}) {
    if (!content.starts_with(word)) continue;
    std::string_view line = NextLine(content);
    if (!TakeLine(word, line)) return DataLossError("a tag record is cut off");
    ESKER_RETURN_IF_ERROR(CheckIdentifier("a tag record's owner", line).WithCode(Code::kDataLoss));
    *field = line;
  }
  return content.empty() ? OkStatus() : DataLossError("a tag record has a line that is not known");
}

}  // namespace

std::string TagRecord::Encode() const {
  if (!image) return std::string(kDeleted);
  std::string content = std::string(kTagForm2) + std::string(kImageWord) + image->ToHex() + "\n";
  if (!project.empty()) content += std::string(kProjectWord) + project + "\n";
  if (!job.empty()) content += std::string(kJobWord) + job + "\n";
  return content;
}

Result<TagRecord> TagRecord::Parse(std::string_view full_name, std::string_view content) {
  TagRecord record;
  if (content == kDeleted) return record;
  const bool form2 = content.starts_with(kTagForm2);
  if (form2) content.remove_prefix(kTagForm2.size());
  std::string_view line = form2 ? NextLine(content) : std::exchange(content, {});
  if (!TakeLine(kImageWord, line)) {
    return DataLossError("a tag record names no image and does not say deleted");
  }
  Result<ImageId> id = ImageId::FromHex(line);
  if (!id.ok()) return std::move(id).status().WithCode(Code::kDataLoss).Wrap("tag record");
  record.image = *id;
  ESKER_RETURN_IF_ERROR(ParseOwner(content, record));
  if (record.project == ProjectOfName(full_name)) return record;
  return DataLossError("a tag record of project \"" + record.project + "\" under another name");
}

std::string ImageStateRecord::Encode() const {
  if (!deleted) return std::string(kLive);
  if (with_tag.empty()) return std::string(kDeleted);
  return std::string(kDeletedWith) + std::to_string(at_number) + " " + with_tag + "\n";
}

Result<ImageStateRecord> ImageStateRecord::Parse(std::string_view content) {
  ImageStateRecord record;
  if (content == kLive) return record;
  record.deleted = true;
  if (content == kDeleted) return record;
  const Status bad = DataLossError("an image's record says neither live nor deleted");
  if (!TakeLine(kDeletedWith, content)) return bad;
  auto [end, ec] =
      std::from_chars(content.data(), content.data() + content.size(), record.at_number);
  size_t digits = static_cast<size_t>(end - content.data());
  if (ec != std::errc() || digits + 1 >= content.size() || content[digits] != ' ') return bad;
  record.with_tag = content.substr(digits + 1);
  return record;
}

Result<uint64_t> PublishNextRecord(Store& store, std::string_view space, const std::string& name,
                                   uint64_t last, const std::string& content) {
  constexpr int kAttempts = 16;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Status status = store.PublishRecord(space, name, last + 1, content);
    if (status.ok()) return last + 1;
    if (status.code() != Code::kAlreadyExists) return status;
    ESKER_ASSIGN_OR_RETURN(Store::Record newest, store.LatestRecord(space, name));
    last = newest.number;
  }
  return AbortedError("another writer keeps changing " + std::string(space) + " record " + name +
                      "; two servers may share this store");
}

}  // namespace esker
