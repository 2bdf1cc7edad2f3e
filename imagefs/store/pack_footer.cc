#include <unordered_map>

#include "base/wire.h"
#include "imagefs/pack.h"
#include "pack_format.h"

namespace esker {
namespace {

// Marks a chunk of a blob that is written out because another pack holds it.
constexpr uint32_t kElsewhere = 0xffffffff;

constexpr size_t kFrameItem = 8 + 4 + 4 + 1;
constexpr size_t kChunkItem = 32 + 4 + 4 + 4;
constexpr size_t kBlobChunkItem = 4;

Status CheckLength(uint32_t length) {
  if (length >= 1 && length <= kMaxChunkSize) return OkStatus();
  return DataLossError("pack footer: a chunk of " + std::to_string(length) + " bytes");
}

Status ParseFrames(WireReader& in, PackFooter& footer) {
  uint32_t count = in.GetCount(kFrameItem);
  footer.frames.reserve(count);
  uint64_t end = pack_format::kHeaderBytes;
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    PackFrame frame;
    frame.offset = in.Get<uint64_t>();
    frame.stored = in.Get<uint32_t>();
    frame.plain = in.Get<uint32_t>();
    frame.codec = in.Get<uint8_t>();
    if (!in.ok()) break;
    ESKER_RETURN_IF_ERROR(
        pack_format::CheckFrameSizes(frame.stored, frame.plain, frame.codec).Wrap("pack footer"));
    if (frame.offset < end || frame.offset > UINT64_MAX / 2) {
      return DataLossError("pack footer: frame " + std::to_string(i) +
                           " overlaps what stands before it");
    }
    end = frame.offset + frame.stored;
    footer.frames.push_back(frame);
  }
  return OkStatus();
}

Status ParseChunks(WireReader& in, PackFooter& footer) {
  uint32_t count = in.GetCount(kChunkItem);
  footer.chunks.reserve(count);
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    PackChunk chunk;
    chunk.ref.digest = in.GetDigest();
    chunk.ref.length = in.Get<uint32_t>();
    chunk.frame = in.Get<uint32_t>();
    chunk.offset = in.Get<uint32_t>();
    if (!in.ok()) break;
    ESKER_RETURN_IF_ERROR(CheckLength(chunk.ref.length));
    if (chunk.frame >= footer.frames.size()) {
      return DataLossError("pack footer: chunk " + std::to_string(i) + " lies in frame " +
                           std::to_string(chunk.frame) + " of " +
                           std::to_string(footer.frames.size()));
    }
    if (uint64_t{chunk.offset} + chunk.ref.length > footer.frames[chunk.frame].plain) {
      return DataLossError("pack footer: chunk " + std::to_string(i) + " ends beyond its frame");
    }
    footer.chunks.push_back(chunk);
  }
  return OkStatus();
}

Result<ChunkRef> ParseBlobChunk(WireReader& in, const PackFooter& footer) {
  uint32_t index = in.Get<uint32_t>();
  if (index != kElsewhere) {
    if (index >= footer.chunks.size()) {
      return DataLossError("pack footer: a blob names chunk " + std::to_string(index) + " of " +
                           std::to_string(footer.chunks.size()));
    }
    return footer.chunks[index].ref;
  }
  ChunkRef ref;
  ref.digest = in.GetDigest();
  ref.length = in.Get<uint32_t>();
  if (in.ok()) ESKER_RETURN_IF_ERROR(CheckLength(ref.length));
  return ref;
}

Status ParseBlobs(WireReader& in, PackFooter& footer) {
  uint32_t count = in.GetCount(sizeof(uint32_t));
  footer.blobs.resize(count);
  for (BlobChunks& blob : footer.blobs) {
    uint32_t chunks = in.GetCount(kBlobChunkItem);
    blob.chunks.reserve(chunks);
    // With no chunks of its own a footer of corrupt bytes ends the reader, not the index check.
    for (uint32_t i = 0; i < chunks && in.ok(); ++i) {
      ESKER_ASSIGN_OR_RETURN(ChunkRef ref, ParseBlobChunk(in, footer));
      blob.chunks.push_back(ref);
    }
  }
  return OkStatus();
}

Status ParseManifests(WireReader& in, PackFooter& footer) {
  uint32_t count = in.GetCount(sizeof(uint32_t));
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    footer.manifests.push_back(in.GetString());
    if (footer.manifests.back().size() > pack_format::kMaxManifestBytes) {
      return DataLossError("pack footer: a manifest of " +
                           std::to_string(footer.manifests.back().size()) + " bytes");
    }
  }
  return OkStatus();
}

}  // namespace

ChunkLocation PackFooter::Locate(const PackId& pack, const PackChunk& chunk) const {
  const PackFrame& frame = frames[chunk.frame];
  return {pack, frame.offset, frame.stored, frame.plain, frame.codec, chunk.offset};
}

std::string PackFooter::Serialise() const {
  WireWriter out;
  out.PutRaw(pack_format::kFooterMagic);
  out.Put<uint32_t>(pack_format::kVersion);
  out.Put<uint32_t>(static_cast<uint32_t>(frames.size()));
  for (const PackFrame& frame : frames) {
    out.Put<uint64_t>(frame.offset);
    out.Put<uint32_t>(frame.stored);
    out.Put<uint32_t>(frame.plain);
    out.Put<uint8_t>(frame.codec);
  }
  std::unordered_map<Digest, uint32_t, DigestHash> index;
  index.reserve(chunks.size());
  out.Put<uint32_t>(static_cast<uint32_t>(chunks.size()));
  for (const PackChunk& chunk : chunks) {
    index.emplace(chunk.ref.digest, static_cast<uint32_t>(index.size()));
    out.PutDigest(chunk.ref.digest);
    out.Put<uint32_t>(chunk.ref.length);
    out.Put<uint32_t>(chunk.frame);
    out.Put<uint32_t>(chunk.offset);
  }
  out.Put<uint32_t>(static_cast<uint32_t>(blobs.size()));
  for (const BlobChunks& blob : blobs) {
    out.Put<uint32_t>(static_cast<uint32_t>(blob.chunks.size()));
    for (const ChunkRef& ref : blob.chunks) {
      auto it = index.find(ref.digest);
      // The index stands for digest and length, so both must be the same.
      if (it != index.end() && chunks[it->second].ref == ref) {
        out.Put<uint32_t>(it->second);
      } else {
        out.Put<uint32_t>(kElsewhere);
        out.PutDigest(ref.digest);
        out.Put<uint32_t>(ref.length);
      }
    }
  }
  out.Put<uint32_t>(static_cast<uint32_t>(manifests.size()));
  for (const std::string& manifest : manifests) out.PutBytes(manifest);
  return out.Take();
}

Result<PackFooter> PackFooter::Parse(std::string_view bytes) {
  if (bytes.size() > pack_format::kMaxFooterBytes) return DataLossError("pack footer: too large");
  WireReader in(bytes);
  if (in.GetRaw(pack_format::kFooterMagic.size()) != pack_format::kFooterMagic) {
    return DataLossError("pack footer: does not start as a footer does");
  }
  if (uint32_t version = in.Get<uint32_t>(); version != pack_format::kVersion) {
    return DataLossError("pack footer: unknown version " + std::to_string(version));
  }
  PackFooter footer;
  ESKER_RETURN_IF_ERROR(ParseFrames(in, footer));
  ESKER_RETURN_IF_ERROR(ParseChunks(in, footer));
  ESKER_RETURN_IF_ERROR(ParseBlobs(in, footer));
  ESKER_RETURN_IF_ERROR(ParseManifests(in, footer));
  ESKER_RETURN_IF_ERROR(in.Finish("pack footer"));
  return footer;
}

}  // namespace esker
