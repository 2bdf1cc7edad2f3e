#include "testing/field_map.h"

#include <fmt/format.h>

#include <cstddef>
#include <set>

#include "image_view.h"
#include "node_rules.h"
#include "testing/image_editor.h"

namespace esker::erofs {
namespace {

class FieldCollector {
 public:
  explicit FieldCollector(const std::string& image) : editor_(image), view_(editor_.View()) {}

  std::vector<ImageField> Run() {
    AddSuperBlock();
    std::vector<uint64_t> pending = {kRootNid};
    while (!pending.empty()) {
      const uint64_t nid = pending.back();
      pending.pop_back();
      if (!seen_.insert(nid).second) continue;
      const InodeView inode = *view_.ReadInode(nid);
      AddInode(inode);
      if (inode.type == FileType::kDirectory) AddDirectory(inode, &pending);
    }
    return std::move(fields_);
  }

 private:
  void Add(uint64_t offset, uint32_t bytes, std::string what) {
    fields_.push_back({offset, bytes, std::move(what)});
  }
  void AddText(uint64_t offset, uint64_t size, const std::string& what) {
    for (uint64_t i = 0; i < size; ++i) {
      if (i < 3 || i + 2 >= size) Add(offset + i, 1, fmt::format("{} byte {}", what, i));
    }
  }

  void AddSuperBlock() {
#define ESKER_FIELD(name) \
  Add(kSuperOffset + offsetof(SuperBlock, name), sizeof(SuperBlock::name), "super block: " #name)
    ESKER_FIELD(magic);
    ESKER_FIELD(feature_compat);
    ESKER_FIELD(block_bits);
    ESKER_FIELD(extension_slots);
    ESKER_FIELD(root_nid);
    ESKER_FIELD(inodes);
    ESKER_FIELD(epoch_seconds);
    ESKER_FIELD(epoch_nanos);
    ESKER_FIELD(blocks);
    ESKER_FIELD(meta_block);
    ESKER_FIELD(xattr_block);
    ESKER_FIELD(feature_incompat);
    ESKER_FIELD(compression);
    ESKER_FIELD(extra_devices);
    ESKER_FIELD(device_slot);
    ESKER_FIELD(directory_block_bits);
    ESKER_FIELD(xattr_prefix_count);
    ESKER_FIELD(xattr_prefix_start);
    ESKER_FIELD(packed_nid);
#undef ESKER_FIELD
    AddText(kSuperOffset + offsetof(SuperBlock, uuid), 16, "super block: uuid");
    AddText(kSuperOffset + offsetof(SuperBlock, volume_name), 16, "super block: volume name");
    AddText(kSuperOffset + offsetof(SuperBlock, reserved), 24, "super block: reserved");
    if (view_.super().extra_devices == 0) return;
    const uint64_t slot = kDeviceSlotIndex * kDeviceSlotSize;
    AddText(slot, 64, "device slot: tag");
    Add(slot + offsetof(DeviceSlot, blocks), 4, "device slot: blocks");
    Add(slot + offsetof(DeviceSlot, mapped_block), 4, "device slot: mapped block");
    AddText(slot + offsetof(DeviceSlot, reserved), 56, "device slot: reserved");
  }

  void AddInode(const InodeView& inode) {
    const bool extended = inode.xattr_offset - inode.offset == sizeof(ExtendedInode);
    auto add = [&](uint64_t offset, size_t bytes, const char* name) {
      Add(inode.offset + offset, static_cast<uint32_t>(bytes),
          fmt::format("inode {}: {}", inode.nid, name));
    };
#define ESKER_FIELD(type, name) add(offsetof(type, name), sizeof(type::name), #name)
    if (extended) {
      ESKER_FIELD(ExtendedInode, format);
      ESKER_FIELD(ExtendedInode, xattr_count);
      ESKER_FIELD(ExtendedInode, mode);
      ESKER_FIELD(ExtendedInode, reserved);
      ESKER_FIELD(ExtendedInode, size);
      ESKER_FIELD(ExtendedInode, u);
      ESKER_FIELD(ExtendedInode, ino);
      ESKER_FIELD(ExtendedInode, uid);
      ESKER_FIELD(ExtendedInode, gid);
      ESKER_FIELD(ExtendedInode, mtime_seconds);
      ESKER_FIELD(ExtendedInode, mtime_nanos);
      ESKER_FIELD(ExtendedInode, nlink);
      add(offsetof(ExtendedInode, reserved2), 8, "reserved2");
    } else {
      ESKER_FIELD(CompactInode, format);
      ESKER_FIELD(CompactInode, xattr_count);
      ESKER_FIELD(CompactInode, mode);
      ESKER_FIELD(CompactInode, nlink);
      ESKER_FIELD(CompactInode, size);
      ESKER_FIELD(CompactInode, mtime_delta);
      ESKER_FIELD(CompactInode, u);
      ESKER_FIELD(CompactInode, ino);
      ESKER_FIELD(CompactInode, uid);
      ESKER_FIELD(CompactInode, gid);
      ESKER_FIELD(CompactInode, reserved);
    }
#undef ESKER_FIELD
    AddXattrs(inode);
    for (uint64_t i = 0; i < inode.chunk_count && i < 8; ++i) {
      const uint64_t at = inode.tail_offset + i * sizeof(ChunkIndex);
      Add(at, 2, fmt::format("inode {}: chunk {}: high block", inode.nid, i));
      Add(at + 2, 2, fmt::format("inode {}: chunk {}: device", inode.nid, i));
      Add(at + 4, 4, fmt::format("inode {}: chunk {}: block", inode.nid, i));
    }
    if (inode.type == FileType::kSymlink) {
      const uint64_t at =
          inode.block_count > 0 ? inode.first_block * kBlockSize : inode.tail_offset;
      AddText(at, inode.size, fmt::format("inode {}: target", inode.nid));
    }
  }

  void AddXattrs(const InodeView& inode) {
    if (inode.xattr_bytes == 0) return;
    const std::string where = fmt::format("inode {}: attributes: ", inode.nid);
    Add(inode.xattr_offset, 4, where + "filter");
    Add(inode.xattr_offset + 4, 1, where + "shared count");
    Add(inode.xattr_offset + 5, 1, where + "reserved");
    const uint64_t end = inode.xattr_offset + inode.xattr_bytes;
    for (uint64_t at = inode.xattr_offset + sizeof(XattrHeader); at < end;) {
      const auto entry = editor_.Get<XattrEntry>(at);
      Add(at, 1, where + "name length");
      Add(at + 1, 1, where + "name index");
      Add(at + 2, 2, where + "value size");
      AddText(at + 4, entry.name_length, where + "name");
      AddText(at + 4 + entry.name_length, entry.value_size, where + "value");
      at += RoundUp(sizeof(XattrEntry) + entry.name_length + entry.value_size, 4);
    }
  }

  void AddDirectory(const InodeView& inode, std::vector<uint64_t>* pending) {
    std::vector<DirectoryEntry> entries;
    for (uint64_t block = 0; block < view_.DirectoryBlocks(inode); ++block) {
      EXPECT_TRUE(view_.ReadDirectoryBlock(inode, block, &entries).ok());
      const uint64_t base =
          block < inode.block_count ? (inode.first_block + block) * kBlockSize : inode.tail_offset;
      for (size_t i = 0; i < entries.size(); ++i) {
        const uint64_t at = base + i * sizeof(Dirent);
        const std::string where = fmt::format("inode {}: entry {}.{}: ", inode.nid, block, i);
        Add(at + offsetof(Dirent, nid), 8, where + "nid");
        Add(at + offsetof(Dirent, name_offset), 2, where + "name offset");
        Add(at + offsetof(Dirent, file_type), 1, where + "type");
        Add(at + offsetof(Dirent, reserved), 1, where + "reserved");
        AddText(base + editor_.Get<Dirent>(at).name_offset, entries[i].name.size(), where + "name");
        pending->push_back(entries[i].nid);
      }
    }
  }

  const ImageEditor editor_;
  const ImageView view_;
  std::set<uint64_t> seen_;
  std::vector<ImageField> fields_;
};

}  // namespace

std::vector<ImageField> FieldsOf(const std::string& image) { return FieldCollector(image).Run(); }

}  // namespace esker::erofs
