// The bytes around a pack's frames (docs/formats/pack.md). Private to the store.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "imagefs/pack.h"
#include "imagefs/types.h"

namespace esker::pack_format {

inline constexpr std::string_view kHeaderMagic = "ESKRPACK";
inline constexpr std::string_view kTrailerMagic = "ESKRTAIL";
inline constexpr std::string_view kFooterMagic = "ESKRFOOT";
inline constexpr uint32_t kVersion = 1;
inline constexpr uint64_t kHeaderBytes = 16;
inline constexpr uint64_t kTrailerBytes = 80;
inline constexpr uint64_t kMaxFooterBytes = 1u << 30;  // plain and stored
inline constexpr size_t kMaxManifestBytes = 4u << 20;
inline constexpr int kZstdLevel = 3;

std::string Header();
Status CheckHeader(std::string_view bytes);

struct Trailer {
  uint64_t footer_offset = 0;
  uint64_t footer_stored = 0;  // bytes in the file
  uint64_t footer_plain = 0;   // bytes after decompression
  uint8_t footer_codec = kCodecRaw;
  Digest footer_digest;          // of the plain footer: the pack's id
  uint32_t footer_checksum = 0;  // CRC-32C of the footer's bytes in the file
};
std::string SerialiseTrailer(const Trailer& trailer);
// From untrusted bytes; `file_bytes` is the size of the whole pack.
Result<Trailer> ParseTrailer(std::string_view bytes, uint64_t file_bytes);

// DATA_LOSS unless these could be a frame's sizes.
Status CheckFrameSizes(uint64_t stored, uint64_t plain, uint8_t codec);

// Compresses; gives the input back under kCodecRaw if that does not save at least 1/32.
struct Packed {
  std::string bytes;
  uint8_t codec = kCodecRaw;
};
Packed Compress(std::string plain);

// Decompresses into exactly `size` bytes at `out`; DATA_LOSS if that is not what comes out.
Status Decompress(std::string_view stored, uint8_t codec, void* out, size_t size);

// Header, trailer and footer of an open pack, checked against each other and against its id.
Result<PackFooter> ReadFooter(int fd, const PackId& id);

}  // namespace esker::pack_format
