// What a node of a tree may be, and how node types appear on disk.
#pragma once

#include <sys/stat.h>

#include <optional>

#include "base/status.h"
#include "imagefs/erofs.h"

namespace esker::erofs {

// Refuses what no EROFS image of ours can hold, naming what is wrong; clears the fields that the
// type does not use and joins neighbouring extents, so that equal nodes compare equal.
Status CheckAndNormalise(Node& node);

inline bool IsDevice(FileType type) {
  return type == FileType::kCharDevice || type == FileType::kBlockDevice;
}

// S_IFREG and so on.
uint16_t ModeFormat(FileType type);
std::optional<FileType> TypeOfMode(uint16_t mode);
// The directory entry's type byte.
uint8_t DirentType(FileType type);

// Linux's 32-bit device number (12 bits of major, 20 of minor).
uint32_t EncodeDevice(uint32_t major, uint32_t minor);
void DecodeDevice(uint32_t encoded, uint32_t* major, uint32_t* minor);

}  // namespace esker::erofs
