#include "tar_acl.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "base/wire.h"

namespace esker::import_internal {
namespace {

constexpr uint32_t kVersion = 2;
constexpr uint32_t kNoId = 0xffffffff;
enum Tag : uint16_t {
  kUserObject = 1,
  kUser = 2,
  kGroupObject = 4,
  kGroup = 8,
  kMask = 0x10,
  kOther = 0x20
};

struct Entry {
  uint16_t tag = 0;
  uint16_t permissions = 0;
  uint32_t id = kNoId;
  auto operator<=>(const Entry& other) const {
    return std::pair(tag, id) <=> std::pair(other.tag, other.id);
  }
};

std::vector<std::string_view> Split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (;;) {
    size_t end = text.find_first_of(separators);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<uint32_t> ParseId(std::string_view text) {
  uint32_t id = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (text.empty() || ec != std::errc() || end != text.data() + text.size() || id == kNoId) {
    return std::nullopt;
  }
  return id;
}

std::optional<uint16_t> ParsePermissions(std::string_view text) {
  uint16_t permissions = 0;
  for (char c : text) {
    switch (c) {
      case 'r':
        permissions |= 4;
        break;
      case 'w':
        permissions |= 2;
        break;
      case 'x':
        permissions |= 1;
        break;
      case '-':
        break;
      default:
        return std::nullopt;
    }
  }
  return permissions;
}

Result<Entry> ParseEntry(std::string_view text) {
  auto bad = [&](const char* why) {
    return InvalidArgumentError("ACL entry \"" + std::string(text) + "\": " + why);
  };
  std::vector<std::string_view> fields = Split(text, ":");
  // "mask:r--" and "other:r--" may leave the empty name out.
  if (fields.size() == 2) fields.insert(fields.begin() + 1, std::string_view());
  if (fields.size() < 3 || fields.size() > 4) return bad("not tag:name:permissions");
  Entry entry;
  std::optional<uint16_t> permissions = ParsePermissions(fields[2]);
  if (!permissions) return bad("unknown permissions");
  entry.permissions = *permissions;
  const bool named = !fields[1].empty() || fields.size() == 4;
  if (fields[0] == "user" || fields[0] == "u") {
    entry.tag = named ? kUser : kUserObject;
  } else if (fields[0] == "group" || fields[0] == "g") {
    entry.tag = named ? kGroup : kGroupObject;
  } else if ((fields[0] == "mask" || fields[0] == "m") && !named) {
    entry.tag = kMask;
  } else if ((fields[0] == "other" || fields[0] == "o") && !named) {
    entry.tag = kOther;
  } else {
    return bad("unknown tag");
  }
  if (!named) return entry;
  std::optional<uint32_t> id = ParseId(fields.size() == 4 ? fields[3] : fields[1]);
  if (!id) return bad("it has a name but no number; write the archive with --numeric-owner");
  entry.id = *id;
  return entry;
}

}  // namespace

Result<std::string> AclTextToXattr(std::string_view text) {
  std::vector<Entry> entries;
  for (std::string_view part : Split(text, ",\n")) {
    size_t first = part.find_first_not_of(" \t");
    if (first == part.npos || part[first] == '#') continue;
    ESKER_ASSIGN_OR_RETURN(Entry entry, ParseEntry(part.substr(first)));
    entries.push_back(entry);
  }
  bool only_mode = std::all_of(entries.begin(), entries.end(), [](const Entry& entry) {
    return entry.tag == kUserObject || entry.tag == kGroupObject || entry.tag == kOther;
  });
  if (only_mode) return std::string();
  std::sort(entries.begin(), entries.end());
  WireWriter out;
  out.Put<uint32_t>(kVersion);
  for (const Entry& entry : entries) {
    out.Put<uint16_t>(entry.tag);
    out.Put<uint16_t>(entry.permissions);
    out.Put<uint32_t>(entry.id);
  }
  return out.Take();
}

}  // namespace esker::import_internal
