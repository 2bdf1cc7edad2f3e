// The nouns of the image store: chunks, blobs, packs, images. See docs/formats/.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/status.h"

namespace esker {

inline constexpr uint32_t kBlockSize = 4096;           // alignment of chunks in a blob, EROFS block
inline constexpr uint32_t kMaxChunkSize = 1u << 20;    // bytes; a chunk has 1..kMaxChunkSize
inline constexpr uint32_t kMaxFrameSize = 256u << 10;  // plain bytes of a frame of small chunks

// A digest that names one kind of thing. Comparable, hashable, printable.
template <typename Tag>
struct DigestId {
  Digest digest;
  auto operator<=>(const DigestId&) const = default;
  std::string ToHex() const { return digest.ToHex(); }
  static Result<DigestId> FromHex(std::string_view hex) {
    ESKER_ASSIGN_OR_RETURN(Digest digest, Digest::FromHex(hex));
    return DigestId{digest};
  }
  struct Hash {
    size_t operator()(const DigestId& id) const { return DigestHash()(id.digest); }
  };
};
using BlobId = DigestId<struct BlobTag>;    // digest of the ordered (length, chunk digest) list
using PackId = DigestId<struct PackTag>;    // SHA-256 of the pack's footer bytes
using ImageId = DigestId<struct ImageTag>;  // SHA-256 of the manifest bytes

struct ChunkRef {
  Digest digest;        // SHA-256 of the plain bytes
  uint32_t length = 0;  // plain bytes, 1..kMaxChunkSize
  auto operator<=>(const ChunkRef&) const = default;
};

// A blob is its ordered list of chunks. In the blob's address space each chunk starts at the next
// multiple of kBlockSize after the end of the one before; the gap reads as zeros; the blob's size
// is a multiple of kBlockSize.
struct BlobChunks {
  std::vector<ChunkRef> chunks;

  uint64_t SizeBytes() const;
  // SHA-256 over "esker-blob-1\n" and, per chunk, its length (u32 LE) and digest.
  BlobId Id() const;
};

inline constexpr uint64_t AlignToBlock(uint64_t n) {
  return (n + kBlockSize - 1) / kBlockSize * kBlockSize;
}

// Where a chunk's bytes lie now.
struct ChunkLocation {
  PackId pack;
  uint64_t frame_offset = 0;  // in the pack file
  uint32_t frame_stored = 0;  // bytes in the file
  uint32_t frame_plain = 0;   // bytes after decompression, <= kMaxChunkSize
  uint8_t codec = 0;          // kCodecRaw or kCodecZstd
  uint32_t offset = 0;        // of the chunk in the plain frame
};
inline constexpr uint8_t kCodecRaw = 0;
inline constexpr uint8_t kCodecZstd = 1;

}  // namespace esker
