#include "tar_reader.h"

#include <algorithm>
#include <optional>

#include "byte_source.h"
#include "tar_acl.h"

namespace esker::import_internal {
namespace {

// Attributes have at most 64 KiB each; the map of a sparse file may stand here, too.
constexpr size_t kMaxPaxBytes = 4u << 20;
constexpr size_t kMaxLongName = 64u << 10;
// Global records are applied to every entry, so there must not be many.
constexpr size_t kMaxGlobalBytes = 64u << 10;
constexpr size_t kMaxGlobalRecords = 256;

uint64_t PaddingOf(uint64_t size) { return (kTarBlock - size % kTarBlock) % kTarBlock; }

bool HasStoredData(char type) {
  // Links, devices, directories and fifos store nothing, whatever their size field says.
  return type < '1' || type > '6';
}

std::optional<TarEntry::Kind> KindOf(const TarHeader& header) {
  using Kind = TarEntry::Kind;
  switch (header.type) {
    case '\0':
    case '0':
      // Before ustar a trailing slash was how a directory showed.
      return header.name.ends_with('/') ? Kind::kDirectory : Kind::kFile;
    case '7':
    case 'S':
      return Kind::kFile;
    case '1':
      return Kind::kHardLink;
    case '2':
      return Kind::kSymlink;
    case '3':
      return Kind::kCharDevice;
    case '4':
      return Kind::kBlockDevice;
    case '5':
    case 'D':
      return Kind::kDirectory;
    case '6':
      return Kind::kFifo;
    default:
      return std::nullopt;
  }
}

std::string CString(std::string bytes) {
  bytes.resize(std::min(bytes.size(), bytes.find('\0')));
  return bytes;
}

}  // namespace

TarReader::TarReader(ByteSource& source) : source_(source), block_(kTarBlock) {}

std::string TarReader::Where() const {
  return "tar entry at offset " + std::to_string(header_offset_);
}

Status TarReader::CutOff() const {
  return DataLossError("the tar is cut off at offset " + std::to_string(offset_));
}

Result<bool> TarReader::ReadBlock() {
  ESKER_ASSIGN_OR_RETURN(size_t n, ReadFully(source_, block_.data(), kTarBlock));
  offset_ += n;
  if (n == 0) return false;
  if (n < kTarBlock) return CutOff();
  return true;
}

Status TarReader::SkipBytes(uint64_t bytes) {
  std::vector<char> sink(std::min<uint64_t>(bytes, 64u << 10));
  while (bytes > 0) {
    size_t want = std::min<uint64_t>(bytes, sink.size());
    ESKER_ASSIGN_OR_RETURN(size_t n, ReadFully(source_, sink.data(), want));
    offset_ += n;
    if (n < want) return CutOff();
    bytes -= n;
  }
  return OkStatus();
}

Status TarReader::FinishEntry() {
  uint64_t rest = data_left_ + padding_;
  data_left_ = padding_ = 0;
  return SkipBytes(rest);
}

Result<std::string> TarReader::ReadBody(const TarHeader& header, size_t limit, const char* what) {
  if (header.size < 0 || static_cast<uint64_t>(header.size) > limit) {
    return InvalidArgumentError(Where() + ": " + what + " of " + std::to_string(header.size) +
                                " bytes, more than " + std::to_string(limit));
  }
  std::string body;
  // Grows with what is really there, not with what the header says.
  while (body.size() < static_cast<size_t>(header.size)) {
    size_t step = std::min<size_t>(static_cast<size_t>(header.size) - body.size(), 1u << 20);
    size_t at = body.size();
    body.resize(at + step);
    ESKER_ASSIGN_OR_RETURN(size_t n, ReadFully(source_, body.data() + at, step));
    offset_ += n;
    if (n < step) return CutOff();
  }
  ESKER_RETURN_IF_ERROR(SkipBytes(PaddingOf(body.size())));
  return body;
}

// Gathers extended headers up to the block of the entry itself.
Result<bool> TarReader::ReadHeader(TarHeader& header) {
  local_.clear();
  long_name_.clear();
  long_link_.clear();
  bool gathered = false;
  for (;;) {
    header_offset_ = offset_;
    ESKER_ASSIGN_OR_RETURN(bool more, ReadBlock());
    std::string_view block(block_.data(), block_.size());
    if (!more || IsZeroBlock(block)) {
      if (gathered)
        return DataLossError("the tar ends after an extended header, at offset " +
                             std::to_string(offset_));
      if (!more) return false;  // a missing end-of-archive marker is common and harmless
      ESKER_ASSIGN_OR_RETURN(more, ReadBlock());
      if (more && !IsZeroBlock(block)) {
        return DataLossError(Where() + ": a single zero block in front of more entries");
      }
      return false;
    }
    Result<TarHeader> parsed = ParseTarHeader(block);
    if (!parsed.ok()) return std::move(parsed).status().Wrap(Where());
    header = std::move(*parsed);
    switch (header.type) {
      case 'x':
      case 'X': {
        ESKER_ASSIGN_OR_RETURN(std::string body,
                               ReadBody(header, kMaxPaxBytes, "an extended header"));
        Result<PaxRecords> records = ParsePaxRecords(body);
        if (!records.ok()) return std::move(records).status().Wrap(Where());
        local_ = std::move(*records);
        gathered = true;
        continue;
      }
      case 'g': {
        ESKER_ASSIGN_OR_RETURN(std::string body,
                               ReadBody(header, kMaxGlobalBytes, "a global header"));
        Result<PaxRecords> records = ParsePaxRecords(body);
        if (!records.ok()) return std::move(records).status().Wrap(Where());
        for (const auto& [key, value] : *records) {
          if (!key.starts_with("GNU.sparse.")) continue;
          return InvalidArgumentError(Where() + ": a sparse map for all files (" + key + ")");
        }
        global_.insert(global_.end(), records->begin(), records->end());
        if (global_.size() > kMaxGlobalRecords) {
          return InvalidArgumentError(Where() + ": more than " + std::to_string(kMaxGlobalRecords) +
                                      " global records");
        }
        continue;
      }
      case 'L': {
        ESKER_ASSIGN_OR_RETURN(std::string body, ReadBody(header, kMaxLongName, "a long name"));
        long_name_ = CString(std::move(body));
        gathered = true;
        continue;
      }
      case 'K': {
        ESKER_ASSIGN_OR_RETURN(std::string body, ReadBody(header, kMaxLongName, "a long link"));
        long_link_ = CString(std::move(body));
        gathered = true;
        continue;
      }
      case 'V': {  // a volume's label is no file
        ESKER_RETURN_IF_ERROR(ReadBody(header, kMaxLongName, "a volume label").status());
        continue;
      }
      default:
        return true;
    }
  }
}

Result<bool> TarReader::Next(TarEntry& entry) {
  ESKER_RETURN_IF_ERROR(FinishEntry());
  TarHeader header;
  ESKER_ASSIGN_OR_RETURN(bool more, ReadHeader(header));
  if (!more) return false;
  entry = TarEntry();
  Status status = Fill(header, entry);
  if (!status.ok()) {
    return std::move(status).Wrap(entry.path.empty() ? Where()
                                                     : "tar entry \"" + entry.path + "\"");
  }
  return true;
}

Status TarReader::Fill(TarHeader& header, TarEntry& entry) {
  if (!long_name_.empty()) header.name = long_name_;
  if (!long_link_.empty()) header.link_name = long_link_;
  entry.path = header.name;
  entry.mtime_seconds = header.mtime;
  ESKER_RETURN_IF_ERROR(ApplyRecords(header, entry));
  if (header.name.size() > kMaxLongName || header.link_name.size() > kMaxLongName) {
    return InvalidArgumentError("a name of more than " + std::to_string(kMaxLongName) + " bytes");
  }
  entry.path = header.name;
  entry.link_target = header.link_name;
  std::optional<TarEntry::Kind> kind = KindOf(header);
  if (!kind) {
    return InvalidArgumentError(std::string("entries of type '") + header.type +
                                "' cannot be imported");
  }
  entry.kind = *kind;
  entry.mode = header.mode;
  entry.uid = header.uid;
  entry.gid = header.gid;
  entry.device_major = header.device_major;
  entry.device_minor = header.device_minor;
  if (header.size < 0) return DataLossError("a negative size");
  data_left_ = HasStoredData(header.type) ? static_cast<uint64_t>(header.size) : 0;
  padding_ = PaddingOf(data_left_);
  return SetUpSparse(header, entry);
}

Status TarReader::ApplyRecords(TarHeader& header, TarEntry& entry) {
  if (global_.empty() && local_.empty()) return OkStatus();
  const TarHeader plain = header;
  for (const PaxRecords* records : {&global_, &local_}) {
    ESKER_RETURN_IF_ERROR(ApplyRecords(*records, plain, header, entry));
  }
  return OkStatus();
}

// A record with an empty value takes back an earlier one: then the header's own value counts.
Status TarReader::ApplyRecords(const PaxRecords& records, const TarHeader& plain, TarHeader& header,
                               TarEntry& entry) {
  for (const auto& [key, value] : records) {
    const bool unset = value.empty();
    if (key == "path") {
      header.name = unset ? plain.name : value;
    } else if (key == "linkpath") {
      header.link_name = unset ? plain.link_name : value;
    } else if (key == "size") {
      ESKER_ASSIGN_OR_RETURN(header.size, unset ? plain.size : ParsePaxNumber(value));
    } else if (key == "uid") {
      ESKER_ASSIGN_OR_RETURN(header.uid, unset ? plain.uid : ParsePaxNumber(value));
    } else if (key == "gid") {
      ESKER_ASSIGN_OR_RETURN(header.gid, unset ? plain.gid : ParsePaxNumber(value));
    } else if (key == "mtime") {
      PaxTime time = {plain.mtime, 0};
      if (!unset) {
        ESKER_ASSIGN_OR_RETURN(time, ParsePaxTime(value));
      }
      entry.mtime_seconds = time.seconds;
      entry.mtime_nanos = time.nanos;
    } else if (key == "SCHILY.devmajor") {
      ESKER_ASSIGN_OR_RETURN(header.device_major, ParsePaxNumber(value));
    } else if (key == "SCHILY.devminor") {
      ESKER_ASSIGN_OR_RETURN(header.device_minor, ParsePaxNumber(value));
    } else if (key == "SCHILY.acl.access" || key == "SCHILY.acl.default") {
      ESKER_ASSIGN_OR_RETURN(std::string acl, AclTextToXattr(value));
      const char* name =
          key.ends_with("access") ? "system.posix_acl_access" : "system.posix_acl_default";
      if (!acl.empty()) entry.xattrs[name] = std::move(acl);
    } else if (key.starts_with("SCHILY.xattr.")) {
      entry.xattrs[key.substr(13)] = value;
    } else if (key.starts_with("LIBARCHIVE.xattr.")) {
      ESKER_ASSIGN_OR_RETURN(std::string name, DecodeUrl(key.substr(17)));
      ESKER_ASSIGN_OR_RETURN(entry.xattrs[name], DecodeBase64(value));
    } else if (key == "SUN.holesdata" || key == "SCHILY.realsize") {
      return InvalidArgumentError("a sparse file in a format that is not known (" + key + ")");
    }
  }
  return OkStatus();
}

Status TarReader::SetUpSparse(const TarHeader& header, TarEntry& entry) {
  map_ = SparseMap();
  if (entry.kind != TarEntry::Kind::kFile) return OkStatus();
  if (header.type == 'S') {
    ESKER_ASSIGN_OR_RETURN(OldGnuSparse sparse, ParseOldGnuSparse({block_.data(), block_.size()}));
    map_ = std::move(sparse.map);
    while (sparse.extended) {
      ESKER_ASSIGN_OR_RETURN(bool more, ReadBlock());
      if (!more) return CutOff();
      ESKER_ASSIGN_OR_RETURN(sparse.extended,
                             ParseOldGnuExtension({block_.data(), block_.size()}, map_));
    }
  } else {
    ESKER_ASSIGN_OR_RETURN(std::optional<PaxSparse> sparse, ParsePaxSparse(local_));
    if (!sparse) {
      map_.real_size = data_left_;
      if (data_left_ > 0) map_.runs = {{0, data_left_}};
      entry.size = data_left_;
      return OkStatus();
    }
    if (!sparse->name.empty()) entry.path = sparse->name;
    map_ = std::move(sparse->map);
    SparseMapParser parser;
    for (bool complete = !sparse->map_in_data; !complete;) {
      if (data_left_ < kTarBlock) return DataLossError("a sparse map that is cut off");
      ESKER_ASSIGN_OR_RETURN(bool more, ReadBlock());
      if (!more) return CutOff();
      data_left_ -= kTarBlock;
      ESKER_ASSIGN_OR_RETURN(complete, parser.Feed({block_.data(), block_.size()}, map_));
    }
  }
  entry.size = map_.real_size;
  return CheckSparseMap(map_, data_left_);
}

Status TarReader::ReadContent(ContentWriter& content) {
  uint64_t position = 0;
  for (const SparseRun& run : map_.runs) {
    ESKER_RETURN_IF_ERROR(content.Skip(run.offset - position));
    position = run.offset;
    for (uint64_t left = run.length; left > 0;) {
      std::span<uint8_t> space = content.Space();
      size_t want = std::min<uint64_t>(left, space.size());
      ESKER_ASSIGN_OR_RETURN(size_t n, ReadFully(source_, space.data(), want));
      offset_ += n;
      data_left_ -= n;
      if (n < want) return CutOff();
      ESKER_RETURN_IF_ERROR(content.Advance(n));
      left -= n;
      position += n;
    }
  }
  return content.Skip(map_.real_size - position);
}

}  // namespace esker::import_internal
