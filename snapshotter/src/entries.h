// What the database's keys and values mean. docs/formats/index.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "imagefs/manifest.h"
#include "imagefs/types.h"

namespace esker {

// --- keys --------------------------------------------------------------------------------------
// A digest's bytes, two of them, or a letter before them.
std::string PairKey(const Digest& first, const Digest& second);
// Who holds a blob's list ('b') or an image's manifest ('i'): letter, id, pack.
std::string HolderPrefix(char kind, const Digest& id);
std::string HolderKey(char kind, const Digest& id, const PackId& pack);
inline constexpr char kBlobHolder = 'b';
inline constexpr char kImageHolder = 'i';
// Tags by full name ('n' name) and by image ('i' image name; the value is the job, or empty).
std::string TagKey(std::string_view name);
std::string ImageTagPrefix(const ImageId& image);
std::string ImageTagKey(const ImageId& image, std::string_view name);
std::string_view NameOfTagKey(std::string_view key);  // of either
// The digest that starts at `at`; the key must be long enough.
Digest DigestAt(std::string_view key, size_t at);

// --- values ------------------------------------------------------------------------------------
struct PackEntry {
  uint64_t sequence = 0;     // order of registration; the earliest holder of a chunk answers for it
  int64_t condemned_ns = 0;  // 0: not condemned
  int64_t published_ns = 0;
  uint64_t file_bytes = 0;
  uint64_t chunks = 0;
  std::string Encode() const;
  static Result<PackEntry> Decode(std::string_view bytes);
};

// Where one pack has one chunk; the pack is in the key.
struct ChunkEntry {
  uint32_t length = 0;
  ChunkLocation location;  // without the pack
  std::string Encode() const;
  static Result<ChunkEntry> Decode(std::string_view bytes);
};

std::string EncodeBlobList(const BlobChunks& list);
Result<BlobChunks> DecodeBlobList(std::string_view bytes);

struct ImageEntry {
  bool deleted = false;
  int64_t published_ns = 0;
  std::string manifest;  // JSON bytes
  std::string Encode() const;
  static Result<ImageEntry> Decode(std::string_view bytes);
};

struct TagEntry {
  uint64_t number = 0;           // of the record that says so
  std::optional<ImageId> image;  // nothing: the tag was deleted
  std::string Encode() const;
  static Result<TagEntry> Decode(std::string_view bytes);
};

std::string EncodeLayer(const ImageLayer& layer);
Result<ImageLayer> DecodeLayer(std::string_view bytes);

}  // namespace esker
