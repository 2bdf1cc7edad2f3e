#include "image_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/digest.h"
#include "chunks.h"
#include "node_rules.h"

namespace esker::erofs {
namespace {

// Far beyond any real layer; keeps the validator's bookkeeping in 32 bits.
constexpr uint64_t kMaxImageBytes = uint64_t{64} << 30;

Status BadSuper(std::string_view why) {
  return DataLossError(fmt::format("EROFS metadata image: super block: {}", why));
}

}  // namespace

Status BadInode(uint64_t nid, std::string_view why) {
  return DataLossError(fmt::format("EROFS metadata image: inode {}: {}", nid, why));
}

bool ImageView::AllZero(uint64_t begin, uint64_t end) const {
  const uint8_t* at = image_.data() + begin;
  const uint64_t size = end - begin;
  return size == 0 || (at[0] == 0 && std::memcmp(at, at + 1, size - 1) == 0);
}

Status ImageView::ReadSuperBlock() {
  if (image_.size() < 2 * kBlockSize || image_.size() % kBlockSize != 0 ||
      image_.size() > kMaxImageBytes) {
    return BadSuper(fmt::format("an image of {} bytes", image_.size()));
  }
  super_ = Load<SuperBlock>(kSuperOffset);
  if (super_.magic != kMagic) return BadSuper("the magic number is not EROFS's");
  uint8_t block[kBlockSize - kSuperOffset];
  std::memcpy(block, image_.data() + kSuperOffset, sizeof(block));
  std::memset(block + offsetof(SuperBlock, checksum), 0, sizeof(super_.checksum));
  if (super_.checksum != ~Crc32c(block, sizeof(block))) return BadSuper("wrong checksum");
  ESKER_RETURN_IF_ERROR(CheckSuperFields());
  ESKER_RETURN_IF_ERROR(ReadDeviceSlot());
  const uint64_t used = super_.extra_devices == 0
                            ? kSuperOffset + sizeof(SuperBlock)
                            : kDeviceSlotIndex * kDeviceSlotSize + sizeof(DeviceSlot);
  if (!AllZero(0, kSuperOffset) || !AllZero(used, kBlockSize)) {
    return BadSuper("something besides it in the first block");
  }
  return OkStatus();
}

Status ImageView::CheckSuperFields() const {
  const uint32_t known = kIncompatChunkedFile | kIncompatDeviceTable;
  if (super_.feature_compat != (kCompatChecksum | kCompatMtime) ||
      (super_.feature_incompat & ~known) != 0 ||
      (super_.feature_incompat & kIncompatChunkedFile) == 0) {
    return BadSuper(
        fmt::format("features {:#x} and {:#x}", super_.feature_compat, super_.feature_incompat));
  }
  if (super_.block_bits != kBlockBits) return BadSuper("blocks are not of 4096 bytes");
  if (super_.root_nid != kRootNid) return BadSuper("the root is not the first inode");
  if (super_.epoch_nanos > kMaxNanos) return BadSuper("a second of nanoseconds or more");
  if (super_.blocks != image_.size() / kBlockSize) {
    return BadSuper(
        fmt::format("{} blocks in an image of {} bytes", uint32_t{super_.blocks}, image_.size()));
  }
  SuperBlock rest = super_;
  rest.magic = rest.checksum = rest.feature_compat = rest.feature_incompat = 0;
  rest.block_bits = 0;
  rest.root_nid = rest.extra_devices = rest.device_slot = 0;
  rest.inodes = rest.epoch_seconds = 0;
  rest.epoch_nanos = rest.blocks = 0;
  std::memset(rest.uuid, 0, sizeof(rest.uuid));
  if (has_implicit()) std::memset(rest.volume_name, 0, sizeof(rest.volume_name));
  const SuperBlock zero{};
  if (std::memcmp(&rest, &zero, sizeof(zero)) != 0) {
    return BadSuper("a field that must be zero is not");
  }
  return OkStatus();
}

Status ImageView::ReadDeviceSlot() {
  const bool has_table = (super_.feature_incompat & kIncompatDeviceTable) != 0;
  if (!has_table) {
    if (super_.extra_devices != 0 || super_.device_slot != 0) {
      return BadSuper("devices without the device table feature");
    }
    return OkStatus();
  }
  if (super_.extra_devices != 1 || super_.device_slot != kDeviceSlotIndex) {
    return BadSuper("not exactly one device behind the super block");
  }
  DeviceSlot slot = Load<DeviceSlot>(kDeviceSlotIndex * kDeviceSlotSize);
  device_blocks_ = slot.blocks;
  slot.blocks = 0;
  const DeviceSlot zero{};
  if (device_blocks_ == 0 || device_blocks_ >= kNullBlock ||
      std::memcmp(&slot, &zero, sizeof(zero)) != 0) {
    return BadSuper("a malformed device slot");
  }
  return OkStatus();
}

Result<InodeView> ImageView::ReadInode(uint64_t nid) const {
  if (nid < kRootNid || nid >= image_.size() / kSlotSize) {
    return BadInode(nid, "lies outside the image");
  }
  InodeView inode;
  inode.nid = nid;
  inode.offset = nid * kSlotSize;
  uint32_t u = 0;
  ESKER_RETURN_IF_ERROR(LoadCore(inode, &u));
  const auto type = TypeOfMode(inode.mode);
  if (!type) return BadInode(nid, fmt::format("mode {:o}", inode.mode));
  inode.type = *type;
  if (inode.mtime_nanos > kMaxNanos) return BadInode(nid, "a second of nanoseconds or more");
  if (inode.nlink == 0) return BadInode(nid, "no links");
  if (inode.uid == kNoId || inode.gid == kNoId) return BadInode(nid, "no owner");
  if (inode.xattr_offset + inode.xattr_bytes > image_.size()) {
    return BadInode(nid, "extended attributes beyond the image");
  }
  if (inode.xattr_bytes == sizeof(XattrHeader)) {
    return BadInode(nid, "an empty list of extended attributes");
  }
  ESKER_RETURN_IF_ERROR(SetLayout(inode, Load<uint16_t>(inode.offset), u));
  return inode;
}

Status ImageView::LoadCore(InodeView& inode, uint32_t* u) const {
  const uint16_t format = Load<uint16_t>(inode.offset);
  const bool extended = (format & kFormatExtended) != 0;
  const uint64_t core = extended ? sizeof(ExtendedInode) : sizeof(CompactInode);
  // Blocks are whole, so this also keeps the core inside the image.
  if (inode.offset % kBlockSize + core > kBlockSize) {
    return BadInode(inode.nid, "crosses a block");
  }
  uint64_t reserved = 0;
  uint16_t xattr_count;
  if (extended) {
    const auto core_fields = Load<ExtendedInode>(inode.offset);
    inode.mode = core_fields.mode;
    inode.nlink = core_fields.nlink;
    inode.size = core_fields.size;
    inode.uid = core_fields.uid;
    inode.gid = core_fields.gid;
    inode.mtime_seconds = static_cast<int64_t>(core_fields.mtime_seconds);
    inode.mtime_nanos = core_fields.mtime_nanos;
    *u = core_fields.u;
    xattr_count = core_fields.xattr_count;
    reserved = core_fields.reserved | core_fields.ino;
    for (uint8_t byte : core_fields.reserved2) reserved |= byte;
  } else {
    const auto core_fields = Load<CompactInode>(inode.offset);
    inode.mode = core_fields.mode;
    inode.nlink = core_fields.nlink;
    inode.size = core_fields.size;
    inode.uid = core_fields.uid;
    inode.gid = core_fields.gid;
    inode.mtime_seconds = static_cast<int64_t>(super_.epoch_seconds);
    inode.mtime_nanos = super_.epoch_nanos;
    *u = core_fields.u;
    xattr_count = core_fields.xattr_count;
    reserved = core_fields.mtime_delta | core_fields.ino | core_fields.reserved;
  }
  if (reserved != 0) return BadInode(inode.nid, "a reserved field is not zero");
  inode.xattr_offset = inode.offset + core;
  inode.xattr_bytes = XattrBodySizeOfField(xattr_count);
  return OkStatus();
}

Status ImageView::SetLayout(InodeView& inode, uint16_t format, uint32_t u) const {
  const uint16_t layout = format >> kFormatLayoutShift;
  if (layout != kFlatPlain && layout != kFlatInline && layout != kChunkBased) {
    return BadInode(inode.nid, fmt::format("data layout {}", layout));
  }
  inode.layout = static_cast<Layout>(layout);
  inode.tail_offset = inode.xattr_offset + inode.xattr_bytes;
  if (inode.type == FileType::kRegular) {
    if (inode.size > 0) {
      if (inode.layout != kChunkBased) return BadInode(inode.nid, "a file that is not chunk-based");
      return SetChunked(inode, u);
    }
  } else if (inode.type == FileType::kDirectory || inode.type == FileType::kSymlink) {
    return SetFlat(inode, u);
  }
  if (inode.size != 0 || inode.layout != kFlatPlain) {
    return BadInode(inode.nid, "content where none can be");
  }
  if (IsDevice(inode.type)) {
    inode.device = u;
  } else if (u != 0) {
    return BadInode(inode.nid, "a block or device number where none can be");
  }
  return OkStatus();
}

Status ImageView::SetFlat(InodeView& inode, uint32_t u) const {
  if (inode.layout == kChunkBased) return BadInode(inode.nid, "chunks outside a regular file");
  if (inode.size == 0) return BadInode(inode.nid, "an empty directory or symbolic link");
  if (inode.type == FileType::kSymlink && inode.size > kMaxSymlinkBytes) {
    return BadInode(inode.nid, fmt::format("a symbolic link of {} bytes", inode.size));
  }
  if (inode.size > image_.size()) return BadInode(inode.nid, "content larger than the image");
  inode.block_count = BlocksOf(inode.size);
  if (inode.layout == kFlatInline) {
    --inode.block_count;
    inode.tail_bytes = inode.size - inode.block_count * kBlockSize;
    // Whole blocks again: what does not cross one is inside the image.
    if (inode.offset % kBlockSize + (inode.end() - inode.offset) > kBlockSize) {
      return BadInode(inode.nid, "inline content crosses a block");
    }
  }
  const uint64_t blocks = image_.size() / kBlockSize;
  inode.first_block = u;
  if (inode.block_count == 0) {
    if (u != 0) return BadInode(inode.nid, "a block number without blocks");
    return OkStatus();
  }
  if (u == 0 || u >= blocks || inode.block_count > blocks - u) {
    return BadInode(inode.nid, "content outside the image");
  }
  return OkStatus();
}

Status ImageView::SetChunked(InodeView& inode, uint32_t u) const {
  if ((u & ~uint32_t{kChunkBitsMask | kChunkIndexes}) != 0 || (u & kChunkIndexes) == 0) {
    return BadInode(inode.nid, fmt::format("chunk format {:#x}", u));
  }
  if (inode.size > kMaxFileSize) {
    return BadInode(inode.nid, fmt::format("a file of {} bytes", inode.size));
  }
  inode.chunk_shift = u & kChunkBitsMask;
  inode.chunk_count = ChunkCount(inode.size, inode.chunk_shift);
  const uint64_t aligned = RoundUp(inode.tail_offset, sizeof(ChunkIndex));
  if (aligned > image_.size() ||
      inode.chunk_count > (image_.size() - aligned) / sizeof(ChunkIndex)) {
    return BadInode(inode.nid, "chunk indexes beyond the image");
  }
  if (!AllZero(inode.tail_offset, aligned)) {
    return BadInode(inode.nid, "something between its parts");
  }
  inode.tail_offset = aligned;
  inode.tail_bytes = inode.chunk_count * sizeof(ChunkIndex);
  return OkStatus();
}

Status ImageView::CheckPadding(const InodeView& inode) const {
  if (!AllZero(inode.end(), RoundUp(inode.end(), kSlotSize))) {
    return BadInode(inode.nid, "something behind its end");
  }
  if (inode.layout == kFlatPlain && inode.block_count > 0) {
    const uint64_t begin = inode.first_block * kBlockSize;
    if (!AllZero(begin + inode.size, begin + inode.block_count * kBlockSize)) {
      return BadInode(inode.nid, "its last block goes on behind its end");
    }
  }
  return OkStatus();
}

Status ImageView::NextXattr(const InodeView& inode, uint64_t* at, std::string* name,
                            std::string_view* value) const {
  const uint64_t left = inode.xattr_offset + inode.xattr_bytes - *at;
  if (left < sizeof(XattrEntry)) return BadInode(inode.nid, "a cut-off extended attribute");
  const auto entry = Load<XattrEntry>(*at);
  const uint64_t used = sizeof(XattrEntry) + entry.name_length + entry.value_size;
  const uint64_t padded = RoundUp(used, 4);
  if (padded > left) return BadInode(inode.nid, "an extended attribute beyond its list");
  auto full = JoinXattrName({entry.name_index, Text(*at + sizeof(XattrEntry), entry.name_length)});
  if (!full) {
    return BadInode(inode.nid,
                    fmt::format("extended attribute with name index {}", entry.name_index));
  }
  *value = Text(*at + sizeof(XattrEntry) + entry.name_length, entry.value_size);
  if (Status allowed = CheckXattr(inode.type, *full, *value); !allowed.ok()) {
    return BadInode(inode.nid, allowed.message());
  }
  if (!AllZero(*at + used, *at + padded)) {
    return BadInode(inode.nid, "something behind an extended attribute");
  }
  *name = std::move(*full);
  *at += padded;
  return OkStatus();
}

Status ImageView::ReadDirectoryBlock(const InodeView& inode, uint64_t index,
                                     std::vector<DirectoryEntry>* entries) const {
  entries->clear();
  const uint64_t size = std::min(kBlockSize, inode.size - index * kBlockSize);
  const bool is_last = index + 1 == DirectoryBlocks(inode);
  const uint64_t base =
      index < inode.block_count ? (inode.first_block + index) * kBlockSize : inode.tail_offset;
  const std::string_view block = Text(base, size);
  auto bad = [&](std::string_view why) {
    return BadInode(inode.nid, fmt::format("directory block {}: {}", index, why));
  };
  if (size < sizeof(Dirent)) return bad("too small for an entry");
  const uint64_t names = Load<Dirent>(base).name_offset;
  if (names == 0 || names % sizeof(Dirent) != 0 || names > size) return bad("no place for names");
  const uint64_t count = names / sizeof(Dirent);
  uint64_t begin = names;
  for (uint64_t i = 0; i < count; ++i) {
    const auto dirent = Load<Dirent>(base + i * sizeof(Dirent));
    const bool last = i + 1 == count;
    uint64_t end;
    if (last) {
      end = std::min(block.find('\0', begin), block.size());
    } else {
      end = Load<Dirent>(base + (i + 1) * sizeof(Dirent)).name_offset;
    }
    if (dirent.name_offset != begin || end <= begin || end > size || dirent.reserved != 0) {
      return bad(fmt::format("entry {} is malformed", i));
    }
    const std::string_view name = block.substr(begin, end - begin);
    if (name.size() > kMaxNameBytes || name.find('/') != std::string_view::npos ||
        name.find('\0') != std::string_view::npos) {
      return bad(fmt::format("entry {} has a name that no file can have", i));
    }
    entries->push_back({name, dirent.nid, dirent.file_type});
    begin = end;
  }
  // Of a full block the kernel takes the last name up to the first zero byte; of the last block, up
  // to its end.
  if (is_last ? begin != size : !AllZero(base + begin, base + size)) {
    return bad("something behind the last name");
  }
  return OkStatus();
}

Result<std::string_view> ImageView::ReadSymlink(const InodeView& inode) const {
  const uint64_t at = inode.block_count > 0 ? inode.first_block * kBlockSize : inode.tail_offset;
  const std::string_view target = Text(at, inode.size);
  if (target.find('\0') != std::string_view::npos) {
    return BadInode(inode.nid, "a symbolic link with a NUL byte");
  }
  return target;
}

Result<ChunkIndex> ImageView::ReadChunk(const InodeView& inode, uint64_t i) const {
  const auto index = Load<ChunkIndex>(inode.tail_offset + i * sizeof(ChunkIndex));
  const bool hole = index.block == kNullBlock;
  if (index.block_high != 0 || index.device != (hole ? 0 : kDataDevice)) {
    return BadInode(inode.nid, fmt::format("chunk {} is malformed", i));
  }
  if (hole) return index;
  const uint64_t all = BlocksOf(inode.size);
  const uint64_t before = i << inode.chunk_shift;
  const uint64_t blocks = std::min(uint64_t{1} << inode.chunk_shift, all - before);
  if (index.block >= device_blocks_ || blocks > device_blocks_ - index.block) {
    return BadInode(inode.nid, fmt::format("chunk {} lies outside the data device", i));
  }
  return index;
}

}  // namespace esker::erofs
