// The members of a tar by offset.
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "blob_files.h"
#include "byte_source.h"
#include "pax_records.h"
#include "tar_header.h"

namespace esker::import_internal {
namespace {

constexpr size_t kMaxMembers = 1'000'000;
constexpr size_t kMaxHeaderBody = 1u << 20;
constexpr int kMaxLinks = 16;

// "./a//b/../c" -> "a/c". Empty where the path leaves the archive.
std::string Normalise(std::string_view path) {
  std::vector<std::string_view> parts;
  while (!path.empty()) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    path = slash == path.npos ? "" : path.substr(slash + 1);
    if (part.empty() || part == ".") continue;
    if (part != "..") {
      parts.push_back(part);
    } else if (parts.empty()) {
      return "";
    } else {
      parts.pop_back();
    }
  }
  std::string out;
  for (std::string_view part : parts) {
    if (!out.empty()) out += '/';
    out += part;
  }
  return out;
}

struct Member {
  enum class Kind { kFile, kLink, kOther };
  Kind kind = Kind::kOther;
  uint64_t offset = 0, size = 0;
  std::string target;  // of a link, from the archive's root; "" leads out
};
using Members = std::unordered_map<std::string, Member>;

class Indexer {
 public:
  explicit Indexer(const FileRange& archive) : archive_(archive) {}

  Result<Members> Run() {
    Members members;
    for (;;) {
      ESKER_ASSIGN_OR_RETURN(bool more, NextHeader());
      if (!more) return members;
      if (members.size() == kMaxMembers) {
        return InvalidArgumentError("the archive has more than " + std::to_string(kMaxMembers) +
                                    " members");
      }
      // Links and devices store nothing, whatever their size field says.
      const bool stores = header_.type < '1' || header_.type > '6';
      Member member;
      member.offset = at_;
      member.size = stores ? static_cast<uint64_t>(header_.size) : 0;
      ESKER_RETURN_IF_ERROR(Skip(member.size));
      Classify(member);
      std::string name = Normalise(header_.name);
      if (!name.empty()) members[std::move(name)] = std::move(member);  // the last one counts
    }
  }

 private:
  std::string Where() const { return "tar member at offset " + std::to_string(header_at_); }

  void Classify(Member& member) const {
    switch (header_.type) {
      case '\0':
      case '0':
      case '7':
        member.kind = Member::Kind::kFile;
        break;
      case '1':
        member.kind = Member::Kind::kLink;
        member.target = Normalise(header_.link_name);
        break;
      case '2':
        member.kind = Member::Kind::kLink;
        // From the link's own folder; an absolute one leads out.
        if (!header_.link_name.starts_with('/')) {
          const size_t slash = header_.name.rfind('/');
          const std::string folder =
              slash == std::string::npos ? "" : header_.name.substr(0, slash + 1);
          member.target = Normalise(folder + header_.link_name);
        }
        break;
      default:
        break;
    }
  }

  Status Skip(uint64_t bytes) {
    const uint64_t padded = (bytes + kTarBlock - 1) / kTarBlock * kTarBlock;
    // The last member's padding may be missing; its bytes may not.
    if (bytes > archive_.size - at_) {
      return DataLossError("the archive is cut off: the " + Where() + " (\"" + header_.name +
                           "\") ends beyond its end");
    }
    at_ += std::min(padded, archive_.size - at_);
    return OkStatus();
  }

  Result<std::string> Take(uint64_t size, uint64_t limit) {
    if (size > limit) return InvalidArgumentError(Where() + ": an extended header is too large");
    std::string text(size, '\0');
    RangeSource source({archive_.file, archive_.offset + at_, archive_.size - at_});
    ESKER_ASSIGN_OR_RETURN(size_t n, ReadFully(source, text.data(), text.size()));
    if (n < size) return DataLossError("the archive is cut off in the " + Where());
    ESKER_RETURN_IF_ERROR(Skip(size));
    return text;
  }

  // The header of the next member with what extended headers say; false at the end.
  Result<bool> NextHeader() {
    std::string name, link;
    PaxRecords records;
    for (;;) {
      header_at_ = at_;
      if (at_ == archive_.size) return false;
      ESKER_ASSIGN_OR_RETURN(std::string block, Take(kTarBlock, kTarBlock));
      if (IsZeroBlock(block)) return false;
      Result<TarHeader> header = ParseTarHeader(block);
      if (!header.ok()) return std::move(header).status().Wrap(Where());
      header_ = std::move(*header);
      if (header_.size < 0) return DataLossError(Where() + ": a negative size");
      const auto size = static_cast<uint64_t>(header_.size);
      if (header_.type == 'x' || header_.type == 'X') {
        ESKER_ASSIGN_OR_RETURN(std::string body, Take(size, kMaxHeaderBody));
        ESKER_ASSIGN_OR_RETURN(records, ParsePaxRecords(body));
      } else if (header_.type == 'L') {
        ESKER_ASSIGN_OR_RETURN(name, Take(size, kMaxHeaderBody));
      } else if (header_.type == 'K') {
        ESKER_ASSIGN_OR_RETURN(link, Take(size, kMaxHeaderBody));
      } else if (header_.type == 'g') {
        ESKER_RETURN_IF_ERROR(Skip(size));  // nothing global concerns names or sizes
      } else {
        if (!name.empty()) header_.name = name.c_str();
        if (!link.empty()) header_.link_name = link.c_str();
        ESKER_RETURN_IF_ERROR(Apply(records).Wrap(Where()));
        return true;
      }
    }
  }

  Status Apply(const PaxRecords& records) {
    for (const auto& [key, value] : records) {
      if (key == "path") {
        header_.name = value;
      } else if (key == "linkpath") {
        header_.link_name = value;
      } else if (key == "size") {
        ESKER_ASSIGN_OR_RETURN(header_.size, ParsePaxNumber(value));
        if (header_.size < 0) return DataLossError("a negative size");
      } else if (key.starts_with("GNU.sparse.")) {
        return InvalidArgumentError("\"" + header_.name +
                                    "\" is a sparse member, which cannot be read by offset");
      }
    }
    if (header_.type == 'S') {
      return InvalidArgumentError("\"" + header_.name +
                                  "\" is a sparse member, which cannot be read by offset");
    }
    return OkStatus();
  }

  const FileRange& archive_;
  uint64_t at_ = 0;
  uint64_t header_at_ = 0;
  TarHeader header_;
};

class TarFilesImpl final : public BlobFiles {
 public:
  TarFilesImpl(FileRange archive, Members members)
      : archive_(std::move(archive)), members_(std::move(members)) {}

  Result<FileRange> Find(const std::string& path) const override {
    std::string name = Normalise(path);
    for (int links = 0; links <= kMaxLinks; ++links) {
      auto found = members_.find(name);
      if (found == members_.end()) {
        return NotFoundError("the archive has no \"" + path + "\"" +
                             (links == 0 ? "" : ": it is a link to \"" + name + "\""));
      }
      const Member& member = found->second;
      if (member.kind == Member::Kind::kFile) {
        return FileRange{archive_.file, archive_.offset + member.offset, member.size};
      }
      if (member.kind == Member::Kind::kOther) {
        return InvalidArgumentError("\"" + path + "\" in the archive is not a regular file");
      }
      if (member.target.empty()) {
        return PermissionDeniedError("\"" + path + "\" in the archive is a link that leads out");
      }
      name = member.target;
    }
    return InvalidArgumentError("\"" + path + "\" in the archive is a chain of too many links");
  }

 private:
  FileRange archive_;
  Members members_;
};

}  // namespace

Result<std::unique_ptr<BlobFiles>> TarFiles(FileRange archive) {
  ESKER_ASSIGN_OR_RETURN(Members members, Indexer(archive).Run());
  return std::unique_ptr<BlobFiles>(
      std::make_unique<TarFilesImpl>(std::move(archive), std::move(members)));
}

}  // namespace esker::import_internal
