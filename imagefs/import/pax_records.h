// PAX extended headers: "length key=value\n" records (POSIX.1-2001 pax). Private to import.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace esker::import_internal {

// In order; values are bytes. GNU's sparse format 0.0 repeats keys, so this is no map.
using PaxRecords = std::vector<std::pair<std::string, std::string>>;

// DATA_LOSS on anything that is not a sequence of records.
Result<PaxRecords> ParsePaxRecords(std::string_view body);

struct PaxTime {
  int64_t seconds = 0;
  uint32_t nanos = 0;
};
// "[-]digits[.digits]"; digits beyond nanoseconds are cut. Times before the epoch round down.
Result<PaxTime> ParsePaxTime(std::string_view text);
// A decimal number, "-" allowed.
Result<int64_t> ParsePaxNumber(std::string_view text);
Result<std::string> DecodeUrl(std::string_view text);
Result<std::string> DecodeBase64(std::string_view text);

}  // namespace esker::import_internal
