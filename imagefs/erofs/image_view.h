// Bounds-checked reading of an untrusted metadata image, piece by piece. Each function checks all
// that can be told from the piece itself; what needs the whole image (cycles, link counts, pieces
// that overlap) is the validator's. Every failure is DATA_LOSS naming the inode.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "directory.h"
#include "format.h"
#include "imagefs/erofs.h"
#include "xattr.h"

namespace esker::erofs {

struct InodeView {
  uint64_t nid = 0;
  uint64_t offset = 0;
  FileType type = FileType::kRegular;
  Layout layout = kFlatPlain;
  uint16_t mode = 0;  // with the type bits
  uint32_t nlink = 0;
  uint32_t uid = 0, gid = 0;
  uint64_t size = 0;
  int64_t mtime_seconds = 0;
  uint32_t mtime_nanos = 0;
  uint32_t device = 0;  // devices: the encoded number

  uint64_t xattr_offset = 0;
  uint64_t xattr_bytes = 0;
  uint64_t tail_offset = 0;  // inline content or chunk indexes, aligned
  uint64_t tail_bytes = 0;
  uint64_t first_block = 0;  // flat content in blocks of its own
  uint64_t block_count = 0;
  uint32_t chunk_shift = 0;
  uint64_t chunk_count = 0;

  uint64_t end() const { return tail_offset + tail_bytes; }
};

Status BadInode(uint64_t nid, std::string_view why);

class ImageView {
 public:
  // Does not copy; the bytes must outlive it and not change.
  explicit ImageView(std::span<const uint8_t> image) : image_(image) {}

  // Everything in block 0. Must come first.
  Status ReadSuperBlock();
  const SuperBlock& super() const { return super_; }
  uint64_t device_blocks() const { return device_blocks_; }
  // Some directories of the image are marked implicit; so says the super block.
  bool has_implicit() const {
    return std::memcmp(super_.volume_name, kImplicitVolumeName, sizeof(super_.volume_name)) == 0;
  }
  uint64_t size() const { return image_.size(); }
  std::span<const uint8_t> bytes() const { return image_; }

  // The fixed part and where its other parts lie; all of them are inside the image.
  Result<InodeView> ReadInode(uint64_t nid) const;

  // That nothing hides behind the inode's parts (in its last slot or its last block).
  Status CheckPadding(const InodeView& inode) const;

  // The attributes in strictly ascending order of full names, all of them allowed. The views passed
  // to `visit(name, value)` live as long as the image (value) or the call (name).
  template <typename Visit>
  Status ForEachXattr(const InodeView& inode, Visit&& visit) const;

  uint64_t DirectoryBlocks(const InodeView& inode) const { return BlocksOf(inode.size); }
  // One block's entries into `entries` (cleared first). Names are well-formed; their order across
  // entries is not checked here.
  Status ReadDirectoryBlock(const InodeView& inode, uint64_t index,
                            std::vector<DirectoryEntry>* entries) const;

  Result<std::string_view> ReadSymlink(const InodeView& inode) const;

  // Index i of a chunk-based file, checked against the device.
  Result<ChunkIndex> ReadChunk(const InodeView& inode, uint64_t i) const;

  bool AllZero(uint64_t begin, uint64_t end) const;

 private:
  template <typename T>
  T Load(uint64_t offset) const {
    T value;
    std::memcpy(&value, image_.data() + offset, sizeof(value));
    return value;
  }
  std::string_view Text(uint64_t offset, uint64_t size) const {
    return {reinterpret_cast<const char*>(image_.data()) + offset, size};
  }
  Status CheckSuperFields() const;
  Status ReadDeviceSlot();
  Status LoadCore(InodeView& inode, uint32_t* u) const;
  Status SetLayout(InodeView& inode, uint16_t format, uint32_t u) const;
  Status SetFlat(InodeView& inode, uint32_t u) const;
  Status SetChunked(InodeView& inode, uint32_t u) const;
  Status NextXattr(const InodeView& inode, uint64_t* at, std::string* name,
                   std::string_view* value) const;

  std::span<const uint8_t> image_;
  SuperBlock super_{};
  uint64_t device_blocks_ = 0;
};

template <typename Visit>
Status ImageView::ForEachXattr(const InodeView& inode, Visit&& visit) const {
  if (inode.xattr_bytes == 0) return OkStatus();
  if (!AllZero(inode.xattr_offset, inode.xattr_offset + sizeof(XattrHeader))) {
    return BadInode(inode.nid, "shared or filtered extended attributes");
  }
  uint64_t at = inode.xattr_offset + sizeof(XattrHeader);
  std::string name, previous;
  std::string_view value;
  while (at < inode.xattr_offset + inode.xattr_bytes) {
    ESKER_RETURN_IF_ERROR(NextXattr(inode, &at, &name, &value));
    if (name <= previous) return BadInode(inode.nid, "extended attributes out of order");
    visit(name, value);
    previous.swap(name);
  }
  return OkStatus();
}

}  // namespace esker::erofs
