// Chunk indexes: how a regular file's extents become the array behind its inode.
#pragma once

#include <cstdint>
#include <vector>

#include "format.h"
#include "imagefs/erofs.h"

namespace esker::erofs {

// Chunks are 4096 << ChunkShift(node) bytes: the largest size at which every chunk is either all
// hole or all one contiguous run of the device, and no larger than the file needs. 0 to 31.
uint32_t ChunkShift(const Node& node);
uint64_t ChunkCount(uint64_t file_size, uint32_t shift);
// Writes ChunkCount() indexes.
void WriteChunkIndexes(const Node& node, uint32_t shift, char* out);

}  // namespace esker::erofs
