#include "blob_layout.h"

#include <algorithm>

namespace esker {
namespace {

// Adds the entry's frame to the group if it belongs there.
bool Extend(FetchGroup* group, uint64_t* plain, const ChunkLocation& previous,
            const ChunkLocation& next) {
  if (next.pack != group->pack) return false;
  if (next.frame_offset == previous.frame_offset) return true;
  const uint64_t previous_end = previous.frame_offset + previous.frame_stored;
  if (next.frame_offset < previous_end || next.frame_offset - previous_end > kMaxGroupGap) {
    return false;
  }
  const uint64_t stored = next.frame_offset + next.frame_stored - group->offset;
  if (stored > kMaxGroupStored || *plain + next.frame_plain > kMaxGroupPlain) return false;
  group->stored = static_cast<uint32_t>(stored);
  *plain += next.frame_plain;
  return true;
}

}  // namespace

BlobLayout::BlobLayout(BlobMap map) : map_(std::move(map)) {
  uint64_t plain = 0;
  for (uint32_t i = 0; i < entry_count(); ++i) {
    const ChunkLocation& where = entry(i).location;
    if (groups_.empty() || !Extend(&groups_.back(), &plain, entry(i - 1).location, where)) {
      groups_.push_back({where.pack, where.frame_offset, where.frame_stored, i, i});
      plain = where.frame_plain;
    }
    groups_.back().end = i + 1;
  }
}

uint32_t BlobLayout::GroupOf(uint32_t entry) const {
  auto after = std::upper_bound(groups_.begin(), groups_.end(), entry,
                                [](uint32_t e, const FetchGroup& g) { return e < g.first; });
  return static_cast<uint32_t>(after - groups_.begin()) - 1;
}

std::pair<uint32_t, uint32_t> BlobLayout::EntriesIn(uint64_t offset, uint64_t size) const {
  auto by_offset = [](uint64_t o, const BlobMap::Entry& e) { return o < e.blob_offset; };
  auto first = std::upper_bound(map_.entries.begin(), map_.entries.end(), offset, by_offset);
  if (first != map_.entries.begin()) --first;
  auto end = std::upper_bound(first, map_.entries.end(), offset + size - 1, by_offset);
  return {static_cast<uint32_t>(first - map_.entries.begin()),
          static_cast<uint32_t>(end - map_.entries.begin())};
}

size_t BlobLayout::MemoryBytes() const {
  return sizeof(*this) + map_.entries.capacity() * sizeof(BlobMap::Entry) +
         groups_.capacity() * sizeof(FetchGroup);
}

}  // namespace esker
