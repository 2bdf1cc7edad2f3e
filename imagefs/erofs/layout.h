// The plan of a metadata image: where every inode and block will lie, before any byte is written.
#pragma once

#include <cstdint>
#include <vector>

#include "format.h"
#include "tree_impl.h"

namespace esker::erofs {

struct PlacedInode {
  InodeId id = 0;
  InodeId parent = 0;          // directories: whose ".." this is
  uint64_t offset = 0;         // in the image; a multiple of kSlotSize
  uint64_t content_bytes = 0;  // directories and symbolic links: size of their content
  uint64_t first_block = 0;    // flat plain with content
  uint32_t links = 0;
  uint32_t xattr_bytes = 0;
  uint8_t chunk_shift = 0;
  Layout layout = kFlatPlain;
  bool compact = false;

  uint64_t core_bytes() const { return compact ? sizeof(CompactInode) : sizeof(ExtendedInode); }
  // Where inline content or chunk indexes may begin.
  uint64_t tail_offset() const { return offset + core_bytes() + xattr_bytes; }
};

struct ImagePlan {
  std::vector<PlacedInode> inodes;  // in image order, the root first
  std::vector<uint64_t> offsets;    // by InodeId
  int64_t epoch_seconds = 0;        // the time that compact inodes have
  uint32_t epoch_nanos = 0;
  uint64_t bytes = 0;
};

// Inodes lie in the order of a walk that places all children of a directory together, then goes
// into its subdirectories. RESOURCE_EXHAUSTED beyond max_bytes.
Result<ImagePlan> PlanImage(const Tree::Impl& tree, uint64_t max_bytes);

// A directory's children with "." and ".." at their places in byte order.
struct NamedChild {
  std::string_view name;
  InodeId id;
};
std::vector<NamedChild> EntriesOf(const Tree::Impl& tree, InodeId directory, InodeId parent);

}  // namespace esker::erofs
