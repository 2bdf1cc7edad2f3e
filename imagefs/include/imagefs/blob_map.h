// BlobMap: a blob's chunk list together with where each chunk lies now. The index makes it, a node
// keeps it as a file beside its cache, the blob server reads it. docs/formats/blob-map.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "imagefs/types.h"

namespace esker {

struct BlobMap {
  BlobId id;
  uint64_t generation = 0;  // grows when compaction moves chunks
  struct Entry {
    ChunkRef chunk;
    uint64_t blob_offset = 0;  // derived: see BlobChunks
    ChunkLocation location;
  };
  std::vector<Entry> entries;
  uint64_t size_bytes = 0;  // derived

  std::string Serialise() const;
  // From untrusted bytes: checksum, version, bounds, and the id is recomputed from the list.
  static Result<BlobMap> Parse(std::string_view bytes);
  // Fills id, blob_offset and size_bytes from a list and its locations (same length).
  static BlobMap Make(const BlobChunks& list, const std::vector<ChunkLocation>& locations);
};

}  // namespace esker
