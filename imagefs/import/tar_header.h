// One 512-byte tar header block. Private to import. POSIX.1-1988 (ustar), GNU and V7 layouts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace esker::import_internal {

inline constexpr size_t kTarBlock = 512;

struct TarHeader {
  enum class Dialect { kV7, kUstar, kStar, kGnu };
  Dialect dialect = Dialect::kV7;
  char type = '0';
  std::string name;  // prefix joined
  std::string link_name;
  uint32_t mode = 0;  // 07777
  int64_t uid = 0, gid = 0;
  int64_t size = 0;
  int64_t mtime = 0;
  int64_t device_major = 0, device_minor = 0;
};

bool IsZeroBlock(std::string_view block);
// DATA_LOSS if the checksum is wrong or a number is none.
Result<TarHeader> ParseTarHeader(std::string_view block);
// Octal text, or base-256 if the first byte's top bit is set.
Result<int64_t> ParseTarNumber(std::string_view field);

}  // namespace esker::import_internal
