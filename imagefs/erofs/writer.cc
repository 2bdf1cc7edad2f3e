#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/digest.h"
#include "chunks.h"
#include "directory.h"
#include "format.h"
#include "layout.h"
#include "node_rules.h"
#include "xattr.h"

namespace esker::erofs {
namespace {

class Writer {
 public:
  Writer(const Tree::Impl& tree, const ImagePlan& plan, uint64_t device_blocks)
      : tree_(tree), plan_(plan), device_blocks_(device_blocks), image_(plan.bytes, '\0') {}

  std::string Run() && {
    for (const PlacedInode& placed : plan_.inodes) WriteInode(placed);
    WriteSuperBlock();
    return std::move(image_);
  }

 private:
  template <typename T>
  void Store(uint64_t offset, const T& value) {
    std::memcpy(image_.data() + offset, &value, sizeof(value));
  }

  void WriteInode(const PlacedInode& placed) {
    const Node& node = tree_.at(placed.id).node;
    has_implicit_ = has_implicit_ || IsImplicit(node);
    if (placed.compact) {
      Store(placed.offset, Compact(placed, node));
    } else {
      Store(placed.offset, Extended(placed, node));
    }
    WriteXattrBody(node.xattrs, image_.data() + placed.offset + placed.core_bytes());
    if (placed.layout == kChunkBased) {
      WriteChunkIndexes(node, placed.chunk_shift,
                        image_.data() + RoundUp(placed.tail_offset(), sizeof(ChunkIndex)));
    } else if (node.type == FileType::kDirectory) {
      WriteDirectory(placed);
    } else if (node.type == FileType::kSymlink) {
      const uint64_t at = ContentOffset(placed, 0);
      std::memcpy(image_.data() + at, node.symlink_target.data(), node.symlink_target.size());
    }
  }

  // Where block `index` of flat content lies.
  uint64_t ContentOffset(const PlacedInode& placed, uint64_t index) const {
    const bool is_inline =
        placed.layout == kFlatInline && index == placed.content_bytes / kBlockSize;
    return is_inline ? placed.tail_offset() : (placed.first_block + index) * kBlockSize;
  }

  void WriteDirectory(const PlacedInode& placed) {
    std::vector<DirectoryEntry> block;
    DirectorySizer sizer;
    uint64_t index = 0;
    auto flush = [&] {
      WriteDirectoryBlock(block.data(), block.size(), image_.data() + ContentOffset(placed, index));
      block.clear();
      ++index;
    };
    for (const NamedChild& entry : EntriesOf(tree_, placed.id, placed.parent)) {
      if (sizer.Add(entry.name) && !block.empty()) flush();
      block.push_back({entry.name, plan_.offsets[entry.id] / kSlotSize,
                       DirentType(tree_.at(entry.id).node.type)});
    }
    flush();
  }

  uint16_t Format(const PlacedInode& placed) const {
    return static_cast<uint16_t>((placed.layout << kFormatLayoutShift) |
                                 (placed.compact ? 0 : kFormatExtended));
  }

  uint32_t UnionField(const PlacedInode& placed, const Node& node) const {
    if (placed.layout == kChunkBased) return kChunkIndexes | placed.chunk_shift;
    if (IsDevice(node.type)) return EncodeDevice(node.device_major, node.device_minor);
    return static_cast<uint32_t>(placed.first_block);
  }

  CompactInode Compact(const PlacedInode& placed, const Node& node) const {
    CompactInode out{};
    out.format = Format(placed);
    out.xattr_count = XattrCountField(placed.xattr_bytes);
    out.mode = ModeFormat(node.type) | node.mode;
    out.nlink = static_cast<uint16_t>(placed.links);
    out.size = static_cast<uint32_t>(Size(placed, node));
    out.u = UnionField(placed, node);
    out.uid = static_cast<uint16_t>(node.uid);
    out.gid = static_cast<uint16_t>(node.gid);
    return out;
  }

  ExtendedInode Extended(const PlacedInode& placed, const Node& node) const {
    ExtendedInode out{};
    out.format = Format(placed);
    out.xattr_count = XattrCountField(placed.xattr_bytes);
    out.mode = ModeFormat(node.type) | node.mode;
    out.size = Size(placed, node);
    out.u = UnionField(placed, node);
    out.uid = node.uid;
    out.gid = node.gid;
    out.mtime_seconds = static_cast<uint64_t>(node.mtime_seconds);
    out.mtime_nanos = node.mtime_nanos;
    out.nlink = placed.links;
    return out;
  }

  static uint64_t Size(const PlacedInode& placed, const Node& node) {
    return node.type == FileType::kRegular ? node.size : placed.content_bytes;
  }

  void WriteSuperBlock() {
    SuperBlock super{};
    super.magic = kMagic;
    super.feature_compat = kCompatChecksum | kCompatMtime;
    super.block_bits = kBlockBits;
    super.root_nid = kRootNid;
    super.inodes = plan_.inodes.size();
    super.epoch_seconds = static_cast<uint64_t>(plan_.epoch_seconds);
    super.epoch_nanos = plan_.epoch_nanos;
    super.blocks = static_cast<uint32_t>(plan_.bytes / kBlockSize);
    super.feature_incompat = kIncompatChunkedFile;
    if (device_blocks_ > 0) {
      super.feature_incompat |= kIncompatDeviceTable;
      super.extra_devices = 1;
      super.device_slot = kDeviceSlotIndex;
      DeviceSlot slot{};
      slot.blocks = static_cast<uint32_t>(device_blocks_);
      Store(kDeviceSlotIndex * kDeviceSlotSize, slot);
    }
    if (has_implicit_) std::memcpy(super.volume_name, kImplicitVolumeName, 16);
    Store(kSuperOffset, super);
    const Digest digest = Sha256::Of(image_);
    std::memcpy(super.uuid, digest.bytes.data(), sizeof(super.uuid));
    Store(kSuperOffset, super);
    // The kernel's CRC-32C is not inverted at the end, ours is.
    super.checksum = ~Crc32c(image_.data() + kSuperOffset, kBlockSize - kSuperOffset);
    Store(kSuperOffset, super);
  }

  const Tree::Impl& tree_;
  const ImagePlan& plan_;
  const uint64_t device_blocks_;
  std::string image_;
  bool has_implicit_ = false;
};

Status CheckDevice(const Tree::Impl& tree, uint64_t device_bytes) {
  if (device_bytes % kBlockSize != 0) {
    return InvalidArgumentError(
        fmt::format("a data device of {} bytes: pad it with zeros to whole blocks of {} bytes",
                    device_bytes, kBlockSize));
  }
  const uint64_t device_blocks = device_bytes / kBlockSize;
  if (device_blocks >= kNullBlock) {
    return ResourceExhaustedError(fmt::format(
        "a data device of {} blocks is beyond EROFS's 32-bit block numbers", device_blocks));
  }
  for (const Inode& inode : tree.inodes) {
    for (const Extent& extent : inode.node.extents) {
      if (BlocksOf(extent.device_offset + extent.length) <= device_blocks) continue;
      return InvalidArgumentError(fmt::format(
          "an extent of {} bytes at device offset {} ends beyond the device's {} blocks",
          extent.length, extent.device_offset, device_blocks));
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::string> WriteMetadata(const Tree& tree, const WriteOptions& options) {
  ESKER_RETURN_IF_ERROR(CheckDevice(tree.impl(), options.data_device_bytes));
  const uint64_t max_bytes = std::min(options.max_metadata_bytes, kNullBlock * kBlockSize);
  ESKER_ASSIGN_OR_RETURN(ImagePlan plan, PlanImage(tree.impl(), max_bytes));
  return Writer(tree.impl(), plan, options.data_device_bytes / kBlockSize).Run();
}

}  // namespace esker::erofs
