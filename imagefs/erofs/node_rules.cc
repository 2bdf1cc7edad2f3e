#include "node_rules.h"

#include <fmt/format.h>

#include "format.h"
#include "xattr.h"

namespace esker::erofs {
namespace {

struct TypeRow {
  FileType type;
  uint16_t format;
  uint8_t dirent;
};
constexpr TypeRow kTypes[] = {
    {FileType::kRegular, S_IFREG, 1},    {FileType::kDirectory, S_IFDIR, 2},
    {FileType::kCharDevice, S_IFCHR, 3}, {FileType::kBlockDevice, S_IFBLK, 4},
    {FileType::kFifo, S_IFIFO, 5},       {FileType::kSocket, S_IFSOCK, 6},
    {FileType::kSymlink, S_IFLNK, 7},
};

Status CheckExtents(const Node& node) {
  uint64_t covered = 0;
  for (const Extent& extent : node.extents) {
    auto bad = [&](std::string_view why) {
      return InvalidArgumentError(
          fmt::format("extent of {} bytes at file offset {} (device {}): {}", extent.length,
                      extent.file_offset, extent.device_offset, why));
    };
    if (extent.length == 0) return bad("is empty");
    if (extent.file_offset % kBlockSize != 0 || extent.device_offset % kBlockSize != 0) {
      return bad("does not start on a 4096-byte block");
    }
    if (extent.file_offset < covered) return bad("overlaps or precedes the one before it");
    if (extent.file_offset > node.size || extent.length > node.size - extent.file_offset) {
      return bad(fmt::format("ends beyond the file's {} bytes", node.size));
    }
    if (extent.device_offset > kMaxFileSize ||
        extent.length > kMaxFileSize - extent.device_offset) {
      return bad("ends beyond the largest device");
    }
    covered = extent.file_offset + extent.length;
    if (covered % kBlockSize != 0 && covered != node.size) {
      return bad("ends inside a block before the end of the file");
    }
  }
  return OkStatus();
}

void JoinExtents(std::vector<Extent>& extents) {
  size_t kept = 0;
  for (size_t i = 1; i < extents.size(); ++i) {
    Extent& last = extents[kept];
    const Extent& next = extents[i];
    if (last.file_offset + last.length == next.file_offset &&
        last.device_offset + last.length == next.device_offset) {
      last.length += next.length;
    } else {
      extents[++kept] = next;
    }
  }
  if (!extents.empty()) extents.resize(kept + 1);
}

Status CheckSymlink(const std::string& target) {
  if (target.empty()) return InvalidArgumentError("a symbolic link with an empty target");
  if (target.size() > kMaxSymlinkBytes) {
    return InvalidArgumentError(
        fmt::format("a symbolic link target of {} bytes, more than 4095", target.size()));
  }
  if (target.find('\0') != std::string::npos) {
    return InvalidArgumentError("a symbolic link target with a NUL byte");
  }
  return OkStatus();
}

}  // namespace

Status CheckAndNormalise(Node& node) {
  if ((node.mode & ~07777) != 0) {
    return InvalidArgumentError(fmt::format("mode {:o} has more than permission bits", node.mode));
  }
  if (node.mtime_nanos > kMaxNanos) {
    return InvalidArgumentError(fmt::format("{} nanoseconds in a time", node.mtime_nanos));
  }
  if (node.uid == kNoId || node.gid == kNoId) {
    return InvalidArgumentError(fmt::format("{} is nobody's id", kNoId));
  }
  if (node.type == FileType::kRegular) {
    if (node.size > kMaxFileSize) {
      return InvalidArgumentError(fmt::format("a file of {} bytes", node.size));
    }
    ESKER_RETURN_IF_ERROR(CheckExtents(node));
    JoinExtents(node.extents);
  } else {
    node.size = 0;
    node.extents.clear();
  }
  if (node.type == FileType::kSymlink) {
    ESKER_RETURN_IF_ERROR(CheckSymlink(node.symlink_target));
  } else {
    node.symlink_target.clear();
  }
  if (!IsDevice(node.type)) {
    node.device_major = node.device_minor = 0;
  } else if (node.device_major > 0xFFF || node.device_minor > 0xFFFFF) {
    return InvalidArgumentError(fmt::format("device number {}:{} is beyond Linux's 12 + 20 bits",
                                            node.device_major, node.device_minor));
  }
  return CheckXattrs(node.type, node.xattrs);
}

uint16_t ModeFormat(FileType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.format;
  }
  return 0;
}

std::optional<FileType> TypeOfMode(uint16_t mode) {
  for (const TypeRow& row : kTypes) {
    if (row.format == (mode & S_IFMT)) return row.type;
  }
  return std::nullopt;
}

uint8_t DirentType(FileType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.dirent;
  }
  return 0;
}

uint32_t EncodeDevice(uint32_t major, uint32_t minor) {
  return (minor & 0xFF) | (major << 8) | ((minor & ~0xFFu) << 12);
}

void DecodeDevice(uint32_t encoded, uint32_t* major, uint32_t* minor) {
  *major = (encoded >> 8) & 0xFFF;
  *minor = (encoded & 0xFF) | ((encoded >> 12) & 0xFFF00);
}

}  // namespace esker::erofs
