#include "tar_header.h"

#include <algorithm>

namespace esker::import_internal {
namespace {

// Offset and size of each field.
struct Field {
  size_t offset, size;
};
constexpr Field kName{0, 100}, kMode{100, 8}, kUid{108, 8}, kGid{116, 8}, kSize{124, 12},
    kMtime{136, 12}, kChecksum{148, 8}, kLinkName{157, 100}, kMajor{329, 8}, kMinor{337, 8},
    kPrefix{345, 155}, kStarPrefix{345, 131}, kStarMagic{508, 4};
constexpr size_t kType = 156, kMagic = 257;

std::string_view Get(std::string_view block, Field field) {
  return block.substr(field.offset, field.size);
}

// Up to the first NUL, or the whole field.
std::string Text(std::string_view field) { return std::string(field.substr(0, field.find('\0'))); }

bool ChecksumMatches(std::string_view block, int64_t want) {
  // Some old writers summed signed bytes.
  int64_t as_unsigned = 0, as_signed = 0;
  for (size_t i = 0; i < block.size(); ++i) {
    bool in_checksum = i >= kChecksum.offset && i < kChecksum.offset + kChecksum.size;
    char c = in_checksum ? ' ' : block[i];
    as_unsigned += static_cast<unsigned char>(c);
    as_signed += static_cast<signed char>(c);
  }
  return want == as_unsigned || want == as_signed;
}

TarHeader::Dialect DialectOf(std::string_view block) {
  using namespace std::string_view_literals;
  std::string_view magic = block.substr(kMagic, 8);
  if (magic == "ustar  \0"sv) return TarHeader::Dialect::kGnu;
  if (magic.substr(0, 6) == "ustar\0"sv) {
    return Get(block, kStarMagic) == "tar\0"sv ? TarHeader::Dialect::kStar
                                               : TarHeader::Dialect::kUstar;
  }
  return TarHeader::Dialect::kV7;
}

Status GetNumber(std::string_view block, Field field, const char* what, int64_t& out) {
  Result<int64_t> number = ParseTarNumber(Get(block, field));
  if (!number.ok()) return std::move(number).status().Wrap(what);
  out = *number;
  return OkStatus();
}

Result<int64_t> ParseBase256(std::string_view field) {
  // Two's complement over all bits but the marker.
  const bool negative = (static_cast<unsigned char>(field[0]) & 0x40) != 0;
  uint64_t value = negative ? ~uint64_t{0} : 0;
  for (size_t i = 0; i < field.size(); ++i) {
    uint64_t byte = static_cast<unsigned char>(field[i]);
    if (i == 0) byte = negative ? (byte | 0x80) : (byte & 0x7f);
    const uint64_t top = value >> 55;
    if (top != 0 && top != 0x1ff) return DataLossError("a number that is beyond 64 bits");
    value = value << 8 | byte;
  }
  if ((static_cast<int64_t>(value) < 0) != negative) {
    return DataLossError("a number that is beyond 64 bits");
  }
  return static_cast<int64_t>(value);
}

}  // namespace

bool IsZeroBlock(std::string_view block) {
  return std::all_of(block.begin(), block.end(), [](char c) { return c == '\0'; });
}

Result<int64_t> ParseTarNumber(std::string_view field) {
  if ((static_cast<unsigned char>(field[0]) & 0x80) != 0) return ParseBase256(field);
  // Leading blanks, digits, then a NUL, a blank or the end of the field.
  size_t i = 0;
  while (i < field.size() && (field[i] == ' ' || field[i] == '\0')) ++i;
  uint64_t value = 0;
  for (; i < field.size() && field[i] != ' ' && field[i] != '\0'; ++i) {
    if (field[i] < '0' || field[i] > '7') return DataLossError("not an octal number");
    value = value << 3 | static_cast<uint64_t>(field[i] - '0');
    if (value > static_cast<uint64_t>(INT64_MAX) >> 3) {
      return DataLossError("a number that is beyond 64 bits");
    }
  }
  return static_cast<int64_t>(value);
}

Result<TarHeader> ParseTarHeader(std::string_view block) {
  int64_t checksum = 0;
  ESKER_RETURN_IF_ERROR(GetNumber(block, kChecksum, "checksum", checksum));
  if (!ChecksumMatches(block, checksum)) return DataLossError("the checksum is wrong");
  TarHeader header;
  header.dialect = DialectOf(block);
  header.type = block[kType];
  header.name = Text(Get(block, kName));
  header.link_name = Text(Get(block, kLinkName));
  int64_t mode = 0;
  ESKER_RETURN_IF_ERROR(GetNumber(block, kMode, "mode", mode));
  header.mode = static_cast<uint32_t>(mode & 07777);
  ESKER_RETURN_IF_ERROR(GetNumber(block, kUid, "uid", header.uid));
  ESKER_RETURN_IF_ERROR(GetNumber(block, kGid, "gid", header.gid));
  ESKER_RETURN_IF_ERROR(GetNumber(block, kSize, "size", header.size));
  ESKER_RETURN_IF_ERROR(GetNumber(block, kMtime, "mtime", header.mtime));
  if (header.dialect == TarHeader::Dialect::kV7) return header;
  if (header.type == '3' || header.type == '4') {
    ESKER_RETURN_IF_ERROR(GetNumber(block, kMajor, "device", header.device_major));
    ESKER_RETURN_IF_ERROR(GetNumber(block, kMinor, "device", header.device_minor));
  }
  // GNU uses the prefix field for other things.
  if (header.dialect != TarHeader::Dialect::kGnu) {
    Field field = header.dialect == TarHeader::Dialect::kStar ? kStarPrefix : kPrefix;
    std::string prefix = Text(Get(block, field));
    if (!prefix.empty()) header.name = prefix + "/" + header.name;
  }
  return header;
}

}  // namespace esker::import_internal
