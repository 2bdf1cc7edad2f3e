// BlobLayout: a blob map prepared for serving: which chunks a range needs, and which chunks are
// fetched together.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "imagefs/blob_map.h"

namespace esker {

// A range of a pack that is read at once: frames that follow each other in the pack as their chunks
// do in the blob.
struct FetchGroup {
  PackId pack;
  uint64_t offset = 0;
  uint32_t stored = 0;  // at most kMaxGroupStored
  uint32_t first = 0;   // entries [first, end) of the map lie in it
  uint32_t end = 0;
};
inline constexpr uint32_t kMaxGroupStored = 512u << 10;
// Frames may shrink a thousandfold; what a fetch holds in memory is bounded too.
inline constexpr uint32_t kMaxGroupPlain = 2u << 20;
// Bytes of other blobs between two frames that are rather read along than skipped.
inline constexpr uint32_t kMaxGroupGap = 64u << 10;

// Immutable.
class BlobLayout {
 public:
  explicit BlobLayout(BlobMap map);

  const BlobMap& map() const { return map_; }
  const BlobMap::Entry& entry(uint32_t index) const { return map_.entries[index]; }
  uint32_t entry_count() const { return static_cast<uint32_t>(map_.entries.size()); }
  const std::vector<FetchGroup>& groups() const { return groups_; }
  uint32_t GroupOf(uint32_t entry) const;
  // [first, end) of the entries whose bytes or following gap overlap [offset, offset + size), which
  // lies inside the blob.
  std::pair<uint32_t, uint32_t> EntriesIn(uint64_t offset, uint64_t size) const;
  size_t MemoryBytes() const;

 private:
  BlobMap map_;
  std::vector<FetchGroup> groups_;
};

}  // namespace esker
