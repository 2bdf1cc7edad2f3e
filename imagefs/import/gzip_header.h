// The header of a gzip member (RFC 1952), byte by byte. Private to import.
//
// ISA-L 2.30 parses headers too, but gets the header's checksum wrong when the header arrives in
// pieces.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace esker::import_internal {

class GzipHeader {
 public:
  // Takes bytes from the front; true when the header is complete. DATA_LOSS: not gzip, or its
  // checksum is wrong.
  Result<bool> Feed(const uint8_t*& in, size_t& in_size);

 private:
  enum class Part { kFixed, kExtraLength, kExtra, kName, kComment, kChecksum, kDone };
  Status Take(uint8_t byte);
  Status CheckFixed(uint8_t byte) const;
  // Goes to the first part from `next` on that the flags announce.
  void Enter(Part next);

  Part part_ = Part::kFixed;
  uint32_t at_ = 0;      // bytes taken of the part
  uint32_t number_ = 0;  // little-endian, of two-byte parts
  uint8_t flags_ = 0;
  uint32_t crc_ = 0;
};

}  // namespace esker::import_internal
