#include "records.h"

#include <charconv>

namespace esker {
namespace {

constexpr std::string_view kDeleted = "deleted\n";
constexpr std::string_view kLive = "live\n";
constexpr std::string_view kImageWord = "image ";
constexpr std::string_view kDeletedWith = "deleted with ";

// Takes `word` off the front and the end of line off the back; false if they are not there.
bool TakeLine(std::string_view word, std::string_view& content) {
  if (!content.starts_with(word) || !content.ends_with('\n')) return false;
  content = content.substr(word.size(), content.size() - word.size() - 1);
  return true;
}

}  // namespace

std::string EncodeTagRecord(const std::optional<ImageId>& image) {
  if (!image) return std::string(kDeleted);
  return std::string(kImageWord) + image->ToHex() + "\n";
}

Result<std::optional<ImageId>> ParseTagRecord(std::string_view content) {
  if (content == kDeleted) return std::optional<ImageId>();
  if (!TakeLine(kImageWord, content)) {
    return DataLossError("a tag record names no image and does not say deleted");
  }
  Result<ImageId> id = ImageId::FromHex(content);
  if (!id.ok()) return std::move(id).status().WithCode(Code::kDataLoss).Wrap("tag record");
  return std::optional<ImageId>(*id);
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
