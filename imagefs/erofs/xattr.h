// Extended attributes: which are allowed, and the inline body behind an inode.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "imagefs/erofs.h"

namespace esker::erofs {

using XattrMap = std::map<std::string, std::string>;

inline constexpr std::string_view kOpaqueName = "trusted.overlay.opaque";
inline constexpr std::string_view kOpaqueValue = "y";
// On a directory that its layer has no entry for (imagefs/implicit_directories.h).
inline constexpr std::string_view kImplicitName = "trusted.esker.implicit";
inline constexpr std::string_view kImplicitValue = "y";

inline bool IsImplicit(const Node& node) {
  return node.type == FileType::kDirectory && !node.xattrs.empty() &&
         node.xattrs.contains(std::string(kImplicitName));
}

// On disk a name is an index for its prefix and the rest.
struct XattrName {
  uint8_t index = 0;
  std::string_view rest;
};
// Nothing for a name that EROFS has no prefix for.
std::optional<XattrName> SplitXattrName(std::string_view full);
std::optional<std::string> JoinXattrName(const XattrName& name);

// One attribute's rules: a known prefix, lengths that fit, and of trusted.overlay.* (which steers
// the kernel's overlay) only opaque=y, on directories.
Status CheckXattr(FileType type, std::string_view name, std::string_view value);
Status CheckXattrs(FileType type, const XattrMap& xattrs);

// Bytes of the inline body, header included; 0 when there are none. A multiple of 4.
uint64_t XattrBodySize(const XattrMap& xattrs);
// Writes XattrBodySize() bytes.
void WriteXattrBody(const XattrMap& xattrs, char* out);

// An inode's count field for a body of that size, and back.
uint16_t XattrCountField(uint64_t body_size);
uint64_t XattrBodySizeOfField(uint16_t count);

}  // namespace esker::erofs
