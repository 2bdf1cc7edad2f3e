// Numbered records and ownership: the store's mutable names, made of immutable files.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>

#include "base/failpoint.h"
#include "base/id.h"
#include "base/io.h"
#include "base/log.h"
#include "base/scope_guard.h"
#include "base/wire.h"
#include "imagefs/store.h"
#include "link_publish.h"

namespace esker {
namespace {

using store_internal::LinkOutcome;

constexpr std::string_view kRecordMagic = "ESKRREC1";
constexpr std::string_view kAliveSpace = "alive";
constexpr size_t kMaxRecordContent = store_internal::kMaxRecordBytes - 4096;
constexpr size_t kMaxFileName = 255;

bool IsPlainNameByte(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-';
}

// One name, one file name: plain bytes stay, `:/@` and a leading dot become %XX.
Result<std::string> EncodeName(std::string_view name) {
  std::string encoded;
  for (char c : name) {
    if (IsPlainNameByte(c) && !(c == '.' && encoded.empty())) {
      encoded += c;
    } else if (c == ':' || c == '/' || c == '@' || c == '.') {
      constexpr char kHex[] = "0123456789ABCDEF";
      encoded += {'%', kHex[c >> 4], kHex[c & 15]};
    } else {
      return InvalidArgumentError("a record name may hold [A-Za-z0-9._:/@-] only, got \"" +
                                  std::string(name) + "\"");
    }
  }
  if (encoded.empty() || encoded.size() > kMaxFileName) {
    return InvalidArgumentError("a record name must have 1 to " + std::to_string(kMaxFileName) +
                                " bytes when encoded, got " + std::to_string(encoded.size()));
  }
  return encoded;
}

// The inverse; nothing for a name that EncodeName would not have made.
std::optional<std::string> DecodeName(std::string_view encoded) {
  std::string name;
  for (size_t i = 0; i < encoded.size(); ++i) {
    if (encoded[i] != '%') {
      name += encoded[i];
      continue;
    }
    unsigned value = 0;
    if (i + 2 >= encoded.size()) return std::nullopt;
    auto [end, ec] = std::from_chars(&encoded[i + 1], &encoded[i + 1] + 2, value, 16);
    if (ec != std::errc() || end != &encoded[i + 1] + 2) return std::nullopt;
    name += static_cast<char>(value);
    i += 2;
  }
  Result<std::string> again = EncodeName(name);
  if (!again.ok() || *again != encoded) return std::nullopt;
  return name;
}

std::optional<uint64_t> ParseNumber(std::string_view text) {
  uint64_t number = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (ec != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (std::to_string(number) != text) return std::nullopt;
  return number;
}

// All record numbers of a directory, ascending; NOT_FOUND if there is no such directory.
Result<std::vector<uint64_t>> ListNumbers(int root, const std::string& directory) {
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, store_internal::ListAt(root, directory));
  std::vector<uint64_t> numbers;
  for (const std::string& name : names) {
    if (std::optional<uint64_t> number = ParseNumber(name)) {
      numbers.push_back(*number);
    } else {
      LogWarning("store_foreign_name_ignored", {{"path", directory + "/" + name}});
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// The path is part of what the checksum covers: a record that was moved does not pass for another.
std::string WrapRecord(const std::string& path, std::string_view content) {
  WireWriter out;
  out.PutRaw(kRecordMagic);
  out.PutBytes(path);
  out.PutBytes(content);
  out.Put<uint32_t>(Crc32c(out.data().data(), out.size()));
  return out.Take();
}

Result<std::string> UnwrapRecord(const std::string& path, std::string_view bytes) {
  WireReader in(bytes);
  if (in.GetRaw(kRecordMagic.size()) != kRecordMagic) {
    return DataLossError("record " + path + " does not start as a record of this version does");
  }
  std::string_view own_path = in.GetBytes();
  std::string_view content = in.GetBytes();
  uint32_t checksum = in.Get<uint32_t>();
  ESKER_RETURN_IF_ERROR(in.Finish("record " + path));
  if (checksum != Crc32c(bytes.data(), bytes.size() - sizeof(checksum))) {
    return DataLossError("record " + path + " has a wrong checksum");
  }
  if (own_path != path) {
    return DataLossError("record " + path + " was written as " + std::string(own_path));
  }
  return std::string(content);
}

Result<std::string> ReadRecord(int root, const std::string& path) {
  Result<std::string> bytes =
      store_internal::ReadSmallFileAt(root, path, store_internal::kMaxRecordBytes);
  if (!bytes.ok()) return bytes;
  return UnwrapRecord(path, *bytes);
}

// Publishes one record file; kExists: that number is taken.
Result<LinkOutcome> LinkRecord(int root, const std::string& directory, uint64_t number,
                               std::string_view content, std::string_view point) {
  const std::string name = std::to_string(number);
  ESKER_ASSIGN_OR_RETURN(
      std::string temporary,
      store_internal::WriteTemporary(root, WrapRecord(directory + "/" + name, content)));
  ScopeGuard remove([&] { ::unlinkat(root, temporary.c_str(), 0); });
  bool made = false;
  return store_internal::LinkDurably(root, temporary, directory, name, point, &made);
}

Result<std::string> RecordDirectory(std::string_view space, std::string_view name) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("record space", space));
  ESKER_ASSIGN_OR_RETURN(std::string encoded, EncodeName(name));
  return "records/" + std::string(space) + "/" + encoded;
}

}  // namespace

Status Store::PublishRecord(std::string_view space, std::string_view name, uint64_t number,
                            std::string_view content) {
  ESKER_ASSIGN_OR_RETURN(std::string directory, RecordDirectory(space, name));
  if (content.size() > kMaxRecordContent) {
    return InvalidArgumentError("record " + directory + " has " + std::to_string(content.size()) +
                                " bytes, more than " + std::to_string(kMaxRecordContent));
  }
  const std::string what =
      "publish " + directory + "/" + std::to_string(number) + " in the store " + path_;
  const std::string space_directory = "records/" + std::string(space);
  ESKER_RETURN_IF_ERROR(store_internal::MakeDirectoryAt(root_.get(), space_directory).Wrap(what));
  Result<LinkOutcome> outcome = LinkRecord(root_.get(), directory, number, content, "store.record");
  if (!outcome.ok()) return std::move(outcome).status().Wrap(what);
  if (*outcome == LinkOutcome::kExists) {
    return AlreadyExistsError(what + ": another writer has that number");
  }
  // The names above the record may have been made by a writer that died before it synced them.
  ESKER_RETURN_IF_ERROR(store_internal::FsyncDirectoryAt(root_.get(), space_directory).Wrap(what));
  ESKER_RETURN_IF_ERROR(store_internal::FsyncDirectoryAt(root_.get(), "records").Wrap(what));
  ESKER_FAILPOINT("store.record.after_parent_fsync");
  return OkStatus();
}

Result<Store::Record> Store::LatestRecord(std::string_view space, std::string_view name) const {
  ESKER_ASSIGN_OR_RETURN(std::string directory, RecordDirectory(space, name));
  Result<std::vector<uint64_t>> numbers = ListNumbers(root_.get(), directory);
  if (!numbers.ok()) return std::move(numbers).status().Wrap("store " + path_);
  if (numbers->empty()) return NotFoundError("store " + path_ + ": no record in " + directory);
  Record record;
  record.number = numbers->back();
  Result<std::string> content =
      ReadRecord(root_.get(), directory + "/" + std::to_string(record.number));
  if (!content.ok()) return std::move(content).status().Wrap("store " + path_);
  record.content = std::move(*content);
  return record;
}

Result<std::vector<std::string>> Store::ListRecordNames(std::string_view space) const {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("record space", space));
  Result<std::vector<std::string>> encoded =
      store_internal::ListAt(root_.get(), "records/" + std::string(space));
  if (!encoded.ok()) {
    if (encoded.status().code() == Code::kNotFound) return std::vector<std::string>{};
    return std::move(encoded).status().Wrap("store " + path_);
  }
  std::vector<std::string> names;
  for (const std::string& file : *encoded) {
    if (std::optional<std::string> name = DecodeName(file)) {
      names.push_back(*name);
    } else {
      LogWarning("store_foreign_name_ignored",
                 {{"path", path_ + "/records/" + std::string(space) + "/" + file}});
    }
  }
  return names;
}

Status Store::RemoveRecords(std::string_view space, std::string_view name) {
  ESKER_ASSIGN_OR_RETURN(std::string directory, RecordDirectory(space, name));
  Result<std::vector<uint64_t>> numbers = ListNumbers(root_.get(), directory);
  if (!numbers.ok()) {
    if (numbers.status().code() == Code::kNotFound) return OkStatus();
    return std::move(numbers).status().Wrap("store " + path_);
  }
  for (uint64_t number : *numbers) {  // ascending: the latest goes last
    std::string path = directory + "/" + std::to_string(number);
    if (::unlinkat(root_.get(), path.c_str(), 0) != 0 && errno != ENOENT) {
      return ErrnoError("remove " + path_ + "/" + path);
    }
    ESKER_FAILPOINT("store.record.after_remove");
  }
  // ENOTEMPTY: a new record came meanwhile, which is not ours to remove.
  if (::unlinkat(root_.get(), directory.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT &&
      errno != ENOTEMPTY && errno != EEXIST) {
    return ErrnoError("remove " + path_ + "/" + directory);
  }
  return store_internal::FsyncDirectoryAt(root_.get(), "records/" + std::string(space));
}

Result<uint64_t> Store::ClaimOwnership(std::string_view claimant) {
  Result<std::vector<uint64_t>> epochs = ListNumbers(root_.get(), "owner");
  if (!epochs.ok()) return std::move(epochs).status().Wrap("claim the store " + path_);
  uint64_t epoch = epochs->empty() ? 0 : epochs->back();
  // Another machine's listing may be stale; its epochs still cannot be taken twice, and counting on
  // from each lost number keeps them without gaps, which CheckOwnership relies on.
  constexpr int kAttempts = 1000;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    ++epoch;
    Result<LinkOutcome> outcome = LinkRecord(root_.get(), "owner", epoch, claimant, "store.owner");
    if (!outcome.ok()) return std::move(outcome).status().Wrap("claim the store " + path_);
    if (*outcome == LinkOutcome::kPublished) return epoch;
  }
  return AbortedError("claim the store " + path_ + ": lost " + std::to_string(kAttempts) +
                      " races for an epoch in a row");
}

Status Store::CheckOwnership(uint64_t epoch) const {
  std::string next = "owner/" + std::to_string(epoch + 1);
  struct stat status;
  if (::fstatat(root_.get(), next.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return OkStatus();
    return ErrnoError("check who owns the store " + path_);
  }
  Result<std::vector<uint64_t>> epochs = ListNumbers(root_.get(), "owner");
  if (!epochs.ok()) return std::move(epochs).status().Wrap("check who owns the store " + path_);
  uint64_t newest = epochs->empty() ? epoch + 1 : std::max(epochs->back(), epoch + 1);
  Result<std::string> claimant = ReadRecord(root_.get(), "owner/" + std::to_string(newest));
  return FailedPreconditionError(
      "store " + path_ + " is owned by " + (claimant.ok() ? *claimant : "an unreadable claim") +
      " since epoch " + std::to_string(newest) + "; ours was " + std::to_string(epoch));
}

Status Store::BeatOwner(uint64_t epoch, uint64_t beat) {
  const std::string name = std::to_string(epoch);
  ESKER_RETURN_IF_ERROR(PublishRecord(kAliveSpace, name, beat, "alive\n"));
  ESKER_ASSIGN_OR_RETURN(std::string directory, RecordDirectory(kAliveSpace, name));
  ESKER_ASSIGN_OR_RETURN(std::vector<uint64_t> beats, ListNumbers(root_.get(), directory));
  for (uint64_t old : beats) {
    if (old >= beat) continue;
    std::string path = directory + "/" + std::to_string(old);
    if (::unlinkat(root_.get(), path.c_str(), 0) != 0 && errno != ENOENT) {
      return ErrnoError("remove " + path_ + "/" + path);
    }
  }
  return OkStatus();
}

Status Store::ReleaseOwner(uint64_t epoch) {
  return RemoveRecords(kAliveSpace, std::to_string(epoch));
}

Result<std::vector<uint64_t>> Store::ListAliveOwners() const {
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, ListRecordNames(kAliveSpace));
  std::vector<uint64_t> epochs;
  for (const std::string& name : names) {
    if (std::optional<uint64_t> epoch = ParseNumber(name)) epochs.push_back(*epoch);
  }
  return epochs;
}

Result<std::optional<Store::Owner>> Store::FindOwner() {
  Result<std::vector<uint64_t>> epochs = ListNumbers(root_.get(), "owner");
  if (!epochs.ok()) return std::move(epochs).status().Wrap("find the owner of store " + path_);
  if (epochs->empty()) return std::optional<Owner>();
  Owner owner;
  owner.epoch = epochs->back();
  Result<std::string> claimant = ReadRecord(root_.get(), "owner/" + std::to_string(owner.epoch));
  owner.claimant = claimant.ok() ? *claimant : "(an unreadable claim)";
  ESKER_ASSIGN_OR_RETURN(std::string directory,
                         RecordDirectory(kAliveSpace, std::to_string(owner.epoch)));
  Result<std::vector<uint64_t>> beats = ListNumbers(root_.get(), directory);
  if (!beats.ok() && beats.status().code() != Code::kNotFound) return std::move(beats).status();
  if (!beats.ok() || beats->empty()) return std::optional<Owner>(std::move(owner));
  ESKER_ASSIGN_OR_RETURN(const int64_t now, StoreSeconds());
  // The newest may be gone when it is looked at, for a newer one: then it is alive.
  owner.silent_seconds = 0;
  struct stat status;
  std::string newest = directory + "/" + std::to_string(beats->back());
  if (::fstatat(root_.get(), newest.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
    owner.silent_seconds = std::max<int64_t>(0, now - status.st_mtim.tv_sec);
  } else if (errno != ENOENT) {
    return ErrnoError("stat " + path_ + "/" + newest);
  }
  return std::optional<Owner>(std::move(owner));
}

}  // namespace esker
