#include "gzip_header.h"

#include <isa-l/crc.h>

namespace esker::import_internal {
namespace {

constexpr uint8_t kHeaderChecksum = 2, kExtraField = 4, kName = 8, kComment = 16;
constexpr uint8_t kReserved = 0xe0;

Status Bad(const char* why) {
  return DataLossError(std::string("decompress the gzip stream: ") + why);
}

}  // namespace

Result<bool> GzipHeader::Feed(const uint8_t*& in, size_t& in_size) {
  while (in_size > 0 && part_ != Part::kDone) {
    ESKER_RETURN_IF_ERROR(Take(*in));
    ++in;
    --in_size;
  }
  return part_ == Part::kDone;
}

Status GzipHeader::CheckFixed(uint8_t byte) const {
  if (at_ == 0 && byte != 0x1f) return Bad("what follows a member is no other member");
  if (at_ == 1 && byte != 0x8b) return Bad("what follows a member is no other member");
  if (at_ == 2 && byte != 8) return Bad("not deflate");
  if (at_ == 3 && (byte & kReserved) != 0) return Bad("unknown flags in its header");
  return OkStatus();
}

Status GzipHeader::Take(uint8_t byte) {
  const Part part = part_;
  if (part == Part::kExtraLength || part == Part::kChecksum) {
    number_ |= static_cast<uint32_t>(byte) << (8 * at_);
  }
  const uint32_t crc = crc_;
  crc_ = ::crc32_gzip_refl(crc_, &byte, 1);
  switch (part) {
    case Part::kFixed:
      ESKER_RETURN_IF_ERROR(CheckFixed(byte));
      if (at_ == 3) flags_ = byte;
      if (++at_ == 10) Enter(Part::kExtraLength);
      break;
    case Part::kExtraLength:
      if (++at_ < 2) break;
      at_ = 0;
      part_ = Part::kExtra;
      if (number_ == 0) Enter(Part::kName);
      break;
    case Part::kExtra:
      if (++at_ == number_) Enter(Part::kName);
      break;
    case Part::kName:
      if (byte == 0) Enter(Part::kComment);
      break;
    case Part::kComment:
      if (byte == 0) Enter(Part::kChecksum);
      break;
    case Part::kChecksum:
      crc_ = crc;  // it does not cover itself
      if (++at_ < 2) break;
      if (number_ != (crc_ & 0xffff)) return Bad("incorrect header check");
      Enter(Part::kDone);
      break;
    case Part::kDone:
      break;
  }
  return OkStatus();
}

void GzipHeader::Enter(Part next) {
  at_ = 0;
  number_ = 0;
  const bool there[] = {true,
                        (flags_ & kExtraField) != 0,
                        (flags_ & kExtraField) != 0,
                        (flags_ & kName) != 0,
                        (flags_ & kComment) != 0,
                        (flags_ & kHeaderChecksum) != 0,
                        true};
  part_ = next;
  while (!there[static_cast<int>(part_)]) part_ = static_cast<Part>(static_cast<int>(part_) + 1);
}

}  // namespace esker::import_internal
