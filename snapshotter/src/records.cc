#include "records.h"

namespace esker {
namespace {

constexpr std::string_view kDeleted = "deleted\n";
constexpr std::string_view kLive = "live\n";
constexpr std::string_view kImageWord = "image ";
constexpr std::string_view kReplacesWord = "replaces ";

// Takes "<word><64 hex>\n" off the front of `rest`; nothing if it does not start with the word.
Result<std::optional<ImageId>> TakeId(std::string_view word, std::string_view& rest) {
  if (!rest.starts_with(word)) return std::optional<ImageId>();
  rest.remove_prefix(word.size());
  size_t end = rest.find('\n');
  if (end == rest.npos) return DataLossError("a tag record's line has no end");
  Result<ImageId> id = ImageId::FromHex(rest.substr(0, end));
  if (!id.ok()) return std::move(id).status().WithCode(Code::kDataLoss).Wrap("tag record");
  rest.remove_prefix(end + 1);
  return std::optional<ImageId>(*id);
}

}  // namespace

std::string TagRecord::Encode() const {
  std::string content;
  if (image) {
    content = std::string(kImageWord) + image->ToHex() + "\n";
  } else {
    content = kDeleted;
  }
  if (replaces) content += std::string(kReplacesWord) + replaces->ToHex() + "\n";
  return content;
}

Result<TagRecord> TagRecord::Parse(std::string_view content) {
  TagRecord record;
  ESKER_ASSIGN_OR_RETURN(record.image, TakeId(kImageWord, content));
  if (!record.image) {
    if (!content.starts_with(kDeleted)) {
      return DataLossError("a tag record names no image and does not say deleted");
    }
    content.remove_prefix(kDeleted.size());
  }
  ESKER_ASSIGN_OR_RETURN(record.replaces, TakeId(kReplacesWord, content));
  if (!content.empty()) return DataLossError("a tag record has lines that are not understood");
  return record;
}

std::string EncodeImageState(bool deleted) { return std::string(deleted ? kDeleted : kLive); }

Result<bool> ParseImageState(std::string_view content) {
  if (content == kDeleted) return true;
  if (content == kLive) return false;
  return DataLossError("an image's record says neither live nor deleted");
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
