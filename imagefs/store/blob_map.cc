#include "imagefs/blob_map.h"

#include <map>

#include "base/wire.h"
#include "pack_format.h"

namespace esker {
namespace {

constexpr std::string_view kMagic = "ESKRBMAP";
constexpr uint32_t kVersion = 1;
constexpr size_t kPackItem = 32;
constexpr size_t kEntryItem = 32 + 4 + 4 + 8 + 4 + 4 + 1 + 4;

Status CheckEntry(const BlobMap::Entry& entry) {
  const ChunkLocation& where = entry.location;
  ESKER_RETURN_IF_ERROR(
      pack_format::CheckFrameSizes(where.frame_stored, where.frame_plain, where.codec));
  if (entry.chunk.length < 1 || uint64_t{where.offset} + entry.chunk.length > where.frame_plain) {
    return DataLossError("a chunk of " + std::to_string(entry.chunk.length) + " bytes at " +
                         std::to_string(where.offset) + " does not fit its frame of " +
                         std::to_string(where.frame_plain));
  }
  if (where.frame_offset > INT64_MAX - kMaxChunkSize) {
    return DataLossError("a frame at the impossible offset " + std::to_string(where.frame_offset));
  }
  return OkStatus();
}

}  // namespace

BlobMap BlobMap::Make(const BlobChunks& list, const std::vector<ChunkLocation>& locations) {
  BlobMap map;
  map.id = list.Id();
  map.entries.reserve(list.chunks.size());
  for (size_t i = 0; i < list.chunks.size() && i < locations.size(); ++i) {
    map.entries.push_back({list.chunks[i], map.size_bytes, locations[i]});
    map.size_bytes += AlignToBlock(list.chunks[i].length);
  }
  return map;
}

std::string BlobMap::Serialise() const {
  std::map<PackId, uint32_t> packs;
  for (const Entry& entry : entries) packs.emplace(entry.location.pack, 0);
  uint32_t next = 0;
  for (auto& [pack, index] : packs) index = next++;

  WireWriter out;
  out.PutRaw(kMagic);
  out.Put<uint32_t>(kVersion);
  out.PutDigest(id.digest);
  out.Put<uint64_t>(generation);
  out.Put<uint32_t>(next);
  for (const auto& [pack, index] : packs) out.PutDigest(pack.digest);
  out.Put<uint32_t>(static_cast<uint32_t>(entries.size()));
  for (const Entry& entry : entries) {
    out.PutDigest(entry.chunk.digest);
    out.Put<uint32_t>(entry.chunk.length);
    out.Put<uint32_t>(packs.at(entry.location.pack));
    out.Put<uint64_t>(entry.location.frame_offset);
    out.Put<uint32_t>(entry.location.frame_stored);
    out.Put<uint32_t>(entry.location.frame_plain);
    out.Put<uint8_t>(entry.location.codec);
    out.Put<uint32_t>(entry.location.offset);
  }
  out.Put<uint32_t>(Crc32c(out.data().data(), out.size()));
  return out.Take();
}

Result<BlobMap> BlobMap::Parse(std::string_view bytes) {
  constexpr size_t kChecksum = sizeof(uint32_t);
  if (bytes.size() < kMagic.size() + kChecksum || !bytes.starts_with(kMagic)) {
    return DataLossError("blob map: does not start as a blob map does");
  }
  std::string_view body = bytes.substr(0, bytes.size() - kChecksum);
  uint32_t checksum = 0;
  std::memcpy(&checksum, body.data() + body.size(), kChecksum);
  if (checksum != Crc32c(body.data(), body.size())) {
    return DataLossError("blob map: wrong checksum");
  }
  WireReader in(body.substr(kMagic.size()));
  if (uint32_t version = in.Get<uint32_t>(); version != kVersion) {
    return DataLossError("blob map: unknown version " + std::to_string(version));
  }
  BlobId id{in.GetDigest()};
  uint64_t generation = in.Get<uint64_t>();
  std::vector<PackId> packs(in.GetCount(kPackItem));
  for (PackId& pack : packs) pack.digest = in.GetDigest();
  uint32_t count = in.GetCount(kEntryItem);
  BlobChunks list;
  std::vector<ChunkLocation> locations;
  list.chunks.reserve(count);
  locations.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    Entry entry;
    entry.chunk.digest = in.GetDigest();
    entry.chunk.length = in.Get<uint32_t>();
    uint32_t pack = in.Get<uint32_t>();
    entry.location.frame_offset = in.Get<uint64_t>();
    entry.location.frame_stored = in.Get<uint32_t>();
    entry.location.frame_plain = in.Get<uint32_t>();
    entry.location.codec = in.Get<uint8_t>();
    entry.location.offset = in.Get<uint32_t>();
    const std::string what = "blob map: entry " + std::to_string(i);
    if (pack >= packs.size()) {
      return DataLossError(what + " names pack " + std::to_string(pack) + " of " +
                           std::to_string(packs.size()));
    }
    ESKER_RETURN_IF_ERROR(CheckEntry(entry).Wrap(what));
    entry.location.pack = packs[pack];
    list.chunks.push_back(entry.chunk);
    locations.push_back(entry.location);
  }
  ESKER_RETURN_IF_ERROR(in.Finish("blob map"));
  BlobMap map = Make(list, locations);
  if (map.id != id) {
    return DataLossError("blob map: says it is blob " + id.ToHex() + " but lists " +
                         map.id.ToHex());
  }
  map.generation = generation;
  return map;
}

}  // namespace esker
