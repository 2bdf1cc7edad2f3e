#include "entries.h"

#include <algorithm>
#include <cstring>

#include "base/wire.h"

namespace esker {
namespace {

constexpr size_t kChunkRefBytes = 36;

std::string Join(char letter, std::string_view a, std::string_view b) {
  std::string key;
  key.reserve(1 + a.size() + b.size());
  key += letter;
  key += a;
  key += b;
  return key;
}

}  // namespace

std::string PairKey(const Digest& first, const Digest& second) {
  std::string key(first.AsBytes());
  key += second.AsBytes();
  return key;
}
std::string HolderPrefix(char kind, const Digest& id) { return Join(kind, id.AsBytes(), {}); }
std::string HolderKey(char kind, const Digest& id, const PackId& pack) {
  return Join(kind, id.AsBytes(), pack.digest.AsBytes());
}
std::string TagKey(std::string_view name) { return Join('n', name, {}); }
std::string ImageTagPrefix(const ImageId& image) { return Join('i', image.digest.AsBytes(), {}); }
std::string ImageTagKey(const ImageId& image, std::string_view name) {
  return Join('i', image.digest.AsBytes(), name);
}
std::string_view NameOfTagKey(std::string_view key) {
  const size_t at = key.starts_with('i') ? 1 + sizeof(Digest::bytes) : 1;
  return key.substr(std::min(at, key.size()));
}
Digest DigestAt(std::string_view key, size_t at) {
  Digest digest;
  if (key.size() >= at + digest.bytes.size()) {
    std::memcpy(digest.bytes.data(), key.data() + at, digest.bytes.size());
  }
  return digest;
}

std::string PackEntry::Encode() const {
  WireWriter out;
  out.Put(sequence);
  out.Put(condemned_ns);
  out.Put(published_ns);
  out.Put(file_bytes);
  out.Put(chunks);
  return out.Take();
}
Result<PackEntry> PackEntry::Decode(std::string_view bytes) {
  WireReader in(bytes);
  PackEntry entry;
  entry.sequence = in.Get<uint64_t>();
  entry.condemned_ns = in.Get<int64_t>();
  entry.published_ns = in.Get<int64_t>();
  entry.file_bytes = in.Get<uint64_t>();
  entry.chunks = in.Get<uint64_t>();
  ESKER_RETURN_IF_ERROR(in.Finish("the index's pack entry"));
  return entry;
}

std::string ChunkEntry::Encode() const {
  WireWriter out;
  out.Put(length);
  out.Put(location.frame_offset);
  out.Put(location.frame_stored);
  out.Put(location.frame_plain);
  out.Put(location.codec);
  out.Put(location.offset);
  return out.Take();
}
Result<ChunkEntry> ChunkEntry::Decode(std::string_view bytes) {
  WireReader in(bytes);
  ChunkEntry entry;
  entry.length = in.Get<uint32_t>();
  entry.location.frame_offset = in.Get<uint64_t>();
  entry.location.frame_stored = in.Get<uint32_t>();
  entry.location.frame_plain = in.Get<uint32_t>();
  entry.location.codec = in.Get<uint8_t>();
  entry.location.offset = in.Get<uint32_t>();
  ESKER_RETURN_IF_ERROR(in.Finish("the index's chunk entry"));
  return entry;
}

std::string EncodeBlobList(const BlobChunks& list) {
  WireWriter out;
  for (const ChunkRef& chunk : list.chunks) {
    out.Put(chunk.length);
    out.PutDigest(chunk.digest);
  }
  return out.Take();
}
Result<BlobChunks> DecodeBlobList(std::string_view bytes) {
  BlobChunks list;
  list.chunks.resize(bytes.size() / kChunkRefBytes);
  WireReader in(bytes);
  for (ChunkRef& chunk : list.chunks) {
    chunk.length = in.Get<uint32_t>();
    chunk.digest = in.GetDigest();
  }
  ESKER_RETURN_IF_ERROR(in.Finish("the index's blob list"));
  return list;
}

std::string ImageEntry::Encode() const {
  WireWriter out;
  out.Put<uint8_t>(deleted ? 1 : 0);
  out.Put(published_ns);
  out.PutBytes(manifest);
  return out.Take();
}
Result<ImageEntry> ImageEntry::Decode(std::string_view bytes) {
  WireReader in(bytes);
  ImageEntry entry;
  entry.deleted = in.Get<uint8_t>() != 0;
  entry.published_ns = in.Get<int64_t>();
  entry.manifest = in.GetString();
  ESKER_RETURN_IF_ERROR(in.Finish("the index's image entry"));
  return entry;
}

std::string TagEntry::Encode() const {
  WireWriter out;
  out.Put(number);
  out.Put<uint8_t>(image ? 1 : 0);
  out.PutDigest(image ? image->digest : Digest());
  return out.Take();
}
Result<TagEntry> TagEntry::Decode(std::string_view bytes) {
  WireReader in(bytes);
  TagEntry entry;
  entry.number = in.Get<uint64_t>();
  bool there = in.Get<uint8_t>() != 0;
  Digest digest = in.GetDigest();
  ESKER_RETURN_IF_ERROR(in.Finish("the index's tag entry"));
  if (there) entry.image = ImageId{digest};
  return entry;
}

std::string EncodeLayer(const ImageLayer& layer) {
  WireWriter out;
  out.PutDigest(layer.metadata.digest);
  out.PutDigest(layer.data.digest);
  out.Put(layer.metadata_bytes);
  out.Put(layer.data_bytes);
  out.PutBytes(layer.source_digest);
  out.PutBytes(layer.diff_id);
  return out.Take();
}
Result<ImageLayer> DecodeLayer(std::string_view bytes) {
  WireReader in(bytes);
  ImageLayer layer;
  layer.metadata.digest = in.GetDigest();
  layer.data.digest = in.GetDigest();
  layer.metadata_bytes = in.Get<uint64_t>();
  layer.data_bytes = in.Get<uint64_t>();
  layer.source_digest = in.GetString();
  layer.diff_id = in.GetString();
  ESKER_RETURN_IF_ERROR(in.Finish("the index's layer entry"));
  return layer;
}

}  // namespace esker
