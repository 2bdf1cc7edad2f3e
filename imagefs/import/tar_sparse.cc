#include "tar_sparse.h"

namespace esker::import_internal {
namespace {

constexpr size_t kHeaderRuns = 386, kHeaderExtended = 482, kHeaderRealSize = 483;
constexpr size_t kHeaderRunCount = 4, kExtensionRunCount = 21, kExtensionExtended = 504;
constexpr size_t kNumber = 12;

Result<uint64_t> Unsigned(int64_t value) {
  if (value < 0) return DataLossError("a sparse map with a negative number");
  return static_cast<uint64_t>(value);
}

Status AddRun(SparseMap& map, uint64_t offset, uint64_t length) {
  if (map.runs.size() >= kMaxSparseRuns) {
    return InvalidArgumentError("a sparse map of more than " + std::to_string(kMaxSparseRuns) +
                                " runs");
  }
  map.runs.push_back({offset, length});
  return OkStatus();
}

Status AddBinaryRuns(std::string_view fields, size_t count, SparseMap& map) {
  for (size_t i = 0; i < count; ++i) {
    std::string_view pair = fields.substr(i * 2 * kNumber, 2 * kNumber);
    if (pair[0] == '\0') break;  // unused from here on
    ESKER_ASSIGN_OR_RETURN(int64_t offset, ParseTarNumber(pair.substr(0, kNumber)));
    ESKER_ASSIGN_OR_RETURN(int64_t length, ParseTarNumber(pair.substr(kNumber)));
    ESKER_ASSIGN_OR_RETURN(uint64_t at, Unsigned(offset));
    ESKER_ASSIGN_OR_RETURN(uint64_t bytes, Unsigned(length));
    ESKER_RETURN_IF_ERROR(AddRun(map, at, bytes));
  }
  return OkStatus();
}

Result<uint64_t> Decimal(std::string_view text) {
  ESKER_ASSIGN_OR_RETURN(int64_t value, ParsePaxNumber(text));
  return Unsigned(value);
}

// "offset,length,offset,length,..."
Status ParseCommaMap(std::string_view text, SparseMap& map) {
  while (!text.empty()) {
    uint64_t pair[2] = {};
    for (uint64_t& number : pair) {
      if (text.empty()) return DataLossError("a sparse map that ends in the middle");
      size_t comma = text.find(',');
      ESKER_ASSIGN_OR_RETURN(number, Decimal(text.substr(0, comma)));
      text = comma == text.npos ? "" : text.substr(comma + 1);
    }
    ESKER_RETURN_IF_ERROR(AddRun(map, pair[0], pair[1]));
  }
  return OkStatus();
}

}  // namespace

Status CheckSparseMap(const SparseMap& map, uint64_t stored) {
  uint64_t end = 0;
  uint64_t sum = 0;
  for (const SparseRun& run : map.runs) {
    if (run.offset < end || run.offset > map.real_size || run.length > map.real_size - run.offset) {
      return DataLossError("a sparse map that is out of order or beyond the file");
    }
    end = run.offset + run.length;
    sum += run.length;
  }
  if (sum != stored) {
    return DataLossError("a sparse map for " + std::to_string(sum) + " bytes of data, but " +
                         std::to_string(stored) + " are stored");
  }
  return OkStatus();
}

Result<OldGnuSparse> ParseOldGnuSparse(std::string_view header_block) {
  OldGnuSparse sparse;
  ESKER_ASSIGN_OR_RETURN(int64_t real,
                         ParseTarNumber(header_block.substr(kHeaderRealSize, kNumber)));
  ESKER_ASSIGN_OR_RETURN(sparse.map.real_size, Unsigned(real));
  ESKER_RETURN_IF_ERROR(
      AddBinaryRuns(header_block.substr(kHeaderRuns), kHeaderRunCount, sparse.map));
  sparse.extended = header_block[kHeaderExtended] != '\0';
  return sparse;
}

Result<bool> ParseOldGnuExtension(std::string_view block, SparseMap& map) {
  ESKER_RETURN_IF_ERROR(AddBinaryRuns(block, kExtensionRunCount, map));
  return block[kExtensionExtended] != '\0';
}

Result<std::optional<PaxSparse>> ParsePaxSparse(const PaxRecords& records) {
  PaxSparse sparse;
  bool any = false;
  uint64_t offset = 0;
  bool has_offset = false;
  std::string major = "0", minor = "0";
  for (const auto& [key, value] : records) {
    if (!key.starts_with("GNU.sparse.")) continue;
    any = true;
    std::string_view field = std::string_view(key).substr(11);
    if (field == "major") major = value;
    if (field == "minor") minor = value;
    if (field == "name") sparse.name = value;
    if (field == "size" || field == "realsize") {
      ESKER_ASSIGN_OR_RETURN(sparse.map.real_size, Decimal(value));
    }
    if (field == "offset") {
      ESKER_ASSIGN_OR_RETURN(offset, Decimal(value));
      has_offset = true;
    }
    if (field == "numbytes") {
      if (!has_offset) return DataLossError("a sparse map without an offset");
      ESKER_ASSIGN_OR_RETURN(uint64_t length, Decimal(value));
      ESKER_RETURN_IF_ERROR(AddRun(sparse.map, offset, length));
      has_offset = false;
    }
    if (field == "map") {
      sparse.map.runs.clear();
      ESKER_RETURN_IF_ERROR(ParseCommaMap(value, sparse.map));
    }
  }
  if (!any) return std::optional<PaxSparse>();
  if (major == "1" && minor == "0") {
    sparse.map_in_data = true;
    sparse.map.runs.clear();
  } else if (major != "0") {
    return InvalidArgumentError("sparse format " + major + "." + minor + " is not known");
  }
  return std::optional<PaxSparse>(std::move(sparse));
}

Result<bool> SparseMapParser::Feed(std::string_view block, SparseMap& map) {
  for (char c : block) {
    if (c != '\n') {
      line_ += c;
      if (line_.size() > 20) return DataLossError("a sparse map with a malformed number");
      continue;
    }
    ESKER_ASSIGN_OR_RETURN(uint64_t number, Decimal(line_));
    line_.clear();
    if (!count_) {
      count_ = number;
    } else if (!offset_) {
      offset_ = number;
    } else {
      ESKER_RETURN_IF_ERROR(AddRun(map, *offset_, number));
      offset_.reset();
    }
    if (map.runs.size() == *count_) return true;
  }
  return false;
}

}  // namespace esker::import_internal
