#include "xattr.h"

#include <fmt/format.h>

#include <cstring>

#include "format.h"

namespace esker::erofs {
namespace {

struct Prefix {
  uint8_t index;
  bool whole;  // the prefix is the complete name
  std::string_view text;
};
constexpr Prefix kPrefixes[] = {
    {1, false, "user."},
    {2, true, "system.posix_acl_access"},
    {3, true, "system.posix_acl_default"},
    {4, false, "trusted."},
    {6, false, "security."},
};

constexpr uint64_t kMaxBody = sizeof(XattrHeader) + 4ull * (UINT16_MAX - 1);

uint64_t EntrySize(std::string_view rest, std::string_view value) {
  return RoundUp(sizeof(XattrEntry) + rest.size() + value.size(), 4);
}

}  // namespace

std::optional<XattrName> SplitXattrName(std::string_view full) {
  for (const Prefix& prefix : kPrefixes) {
    if (!full.starts_with(prefix.text)) continue;
    std::string_view rest = full.substr(prefix.text.size());
    if (rest.empty() != prefix.whole) continue;
    return XattrName{prefix.index, rest};
  }
  return std::nullopt;
}

std::optional<std::string> JoinXattrName(const XattrName& name) {
  for (const Prefix& prefix : kPrefixes) {
    if (prefix.index != name.index) continue;
    if (name.rest.empty() != prefix.whole) return std::nullopt;
    return std::string(prefix.text) + std::string(name.rest);
  }
  return std::nullopt;
}

Status CheckXattr(FileType type, std::string_view name, std::string_view value) {
  auto bad = [&](std::string_view why) {
    return InvalidArgumentError(fmt::format("extended attribute \"{}\": {}", name, why));
  };
  if (name.find('\0') != std::string_view::npos) return bad("has a NUL byte in its name");
  if (name.size() > kMaxNameBytes) return bad("has a name of more than 255 bytes");
  if (!SplitXattrName(name)) {
    return bad("EROFS keeps only user.*, trusted.*, security.* and POSIX ACLs");
  }
  if (value.size() > UINT16_MAX) {
    return bad(fmt::format("has {} bytes of value, more than 65535", value.size()));
  }
  if (name.starts_with("trusted.overlay.") &&
      (name != kOpaqueName || value != kOpaqueValue || type != FileType::kDirectory)) {
    return bad("would steer the overlay; only opaque=y on a directory is allowed");
  }
  if (name.starts_with("trusted.esker.") &&
      (name != kImplicitName || value != kImplicitValue || type != FileType::kDirectory)) {
    return bad("is ours; only implicit=y on a directory is allowed");
  }
  return OkStatus();
}

Status CheckXattrs(FileType type, const XattrMap& xattrs) {
  for (const auto& [name, value] : xattrs) {
    ESKER_RETURN_IF_ERROR(CheckXattr(type, name, value));
  }
  if (XattrBodySize(xattrs) > kMaxBody) {
    return InvalidArgumentError(fmt::format(
        "extended attributes of {} bytes together, more than {}", XattrBodySize(xattrs), kMaxBody));
  }
  return OkStatus();
}

uint64_t XattrBodySize(const XattrMap& xattrs) {
  if (xattrs.empty()) return 0;
  uint64_t size = sizeof(XattrHeader);
  for (const auto& [name, value] : xattrs) size += EntrySize(SplitXattrName(name)->rest, value);
  return size;
}

void WriteXattrBody(const XattrMap& xattrs, char* out) {
  if (xattrs.empty()) return;
  const XattrHeader header{};
  std::memcpy(out, &header, sizeof(header));
  out += sizeof(header);
  for (const auto& [full, value] : xattrs) {
    const XattrName name = *SplitXattrName(full);
    const XattrEntry entry{static_cast<uint8_t>(name.rest.size()), name.index,
                           static_cast<uint16_t>(value.size())};
    std::memcpy(out, &entry, sizeof(entry));
    std::memcpy(out + sizeof(entry), name.rest.data(), name.rest.size());
    std::memcpy(out + sizeof(entry) + name.rest.size(), value.data(), value.size());
    out += EntrySize(name.rest, value);
  }
}

uint16_t XattrCountField(uint64_t body_size) {
  if (body_size == 0) return 0;
  return static_cast<uint16_t>((body_size - sizeof(XattrHeader)) / 4 + 1);
}

uint64_t XattrBodySizeOfField(uint16_t count) {
  if (count == 0) return 0;
  return sizeof(XattrHeader) + 4ull * (count - 1);
}

}  // namespace esker::erofs
