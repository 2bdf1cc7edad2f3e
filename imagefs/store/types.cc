#include "imagefs/types.h"

#include "base/wire.h"

namespace esker {

uint64_t BlobChunks::SizeBytes() const {
  uint64_t size = 0;
  for (const ChunkRef& chunk : chunks) size += AlignToBlock(chunk.length);
  return size;
}

BlobId BlobChunks::Id() const {
  WireWriter list;
  list.PutRaw("esker-blob-1\n");
  for (const ChunkRef& chunk : chunks) {
    list.Put<uint32_t>(chunk.length);
    list.PutDigest(chunk.digest);
  }
  return BlobId{Sha256::Of(list.data())};
}

}  // namespace esker
