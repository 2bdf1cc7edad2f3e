#include "chunks.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace esker::erofs {
namespace {

constexpr uint32_t kMaxShift = 31;

}  // namespace

uint32_t ChunkShift(const Node& node) {
  // Where one run ends and another begins (hole and data, or data elsewhere), a chunk must end too,
  // so the chunk size divides all such offsets. Extents are joined, so every border counts.
  uint64_t borders = 0;
  uint64_t end = 0;
  for (const Extent& extent : node.extents) {
    borders |= end | extent.file_offset;
    end = extent.file_offset + extent.length;
  }
  if (end < node.size) borders |= end;
  const uint32_t needed = node.size <= kBlockSize ? 0 : std::bit_width(BlocksOf(node.size) - 1);
  const uint32_t allowed = borders == 0 ? kMaxShift : std::countr_zero(borders >> kBlockBits);
  return std::min({needed, allowed, kMaxShift});
}

uint64_t ChunkCount(uint64_t file_size, uint32_t shift) {
  const uint64_t blocks = BlocksOf(file_size);
  return (blocks >> shift) + ((blocks & ((uint64_t{1} << shift) - 1)) != 0);
}

void WriteChunkIndexes(const Node& node, uint32_t shift, char* out) {
  const uint64_t count = ChunkCount(node.size, shift);
  const uint64_t chunk_bytes = kBlockSize << shift;
  size_t next = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t begin = i * chunk_bytes;
    while (next < node.extents.size() &&
           node.extents[next].file_offset + node.extents[next].length <= begin) {
      ++next;
    }
    ChunkIndex index{0, 0, kNullBlock};
    if (next < node.extents.size() && node.extents[next].file_offset <= begin) {
      const Extent& extent = node.extents[next];
      const uint64_t at = extent.device_offset + (begin - extent.file_offset);
      index = {0, kDataDevice, static_cast<uint32_t>(at >> kBlockBits)};
    }
    std::memcpy(out + i * sizeof(index), &index, sizeof(index));
  }
}

}  // namespace esker::erofs
