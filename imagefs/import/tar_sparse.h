// Sparse members: where the data of a file with holes goes. Private to import.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "pax_records.h"
#include "tar_header.h"

namespace esker::import_internal {

struct SparseRun {
  uint64_t offset = 0;
  uint64_t length = 0;
};
struct SparseMap {
  uint64_t real_size = 0;
  std::vector<SparseRun> runs;  // ascending, not overlapping, inside real_size
};

inline constexpr size_t kMaxSparseRuns = 4'000'000;

// OK if the runs are in order, inside the file, and add up to `stored` bytes of data.
Status CheckSparseMap(const SparseMap& map, uint64_t stored);

// The old GNU format: up to 4 runs in the header block, more in extension blocks of 21.
struct OldGnuSparse {
  SparseMap map;
  bool extended = false;  // an extension block follows
};
Result<OldGnuSparse> ParseOldGnuSparse(std::string_view header_block);
// Adds an extension block's runs; gives whether another follows.
Result<bool> ParseOldGnuExtension(std::string_view block, SparseMap& map);

// What PAX records say about a sparse member (GNU formats 0.0, 0.1 and 1.0). Nothing if they say
// nothing. In 1.0 the map stands in front of the data: `map_in_data`.
struct PaxSparse {
  SparseMap map;
  std::string name;  // the real name; "" if the path is it
  bool map_in_data = false;
};
Result<std::optional<PaxSparse>> ParsePaxSparse(const PaxRecords& records);

// Reads the decimal numbers of a 1.0 map block by block.
class SparseMapParser {
 public:
  // Takes one 512-byte block; true when the map is complete.
  Result<bool> Feed(std::string_view block, SparseMap& map);

 private:
  std::string line_;
  std::optional<uint64_t> count_;
  std::optional<uint64_t> offset_;
};

}  // namespace esker::import_internal
