// Bending the bytes of a true image, for tests of the validator.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include "base/digest.h"
#include "image_view.h"
#include "imagefs/erofs.h"
#include "tree_impl.h"

namespace esker::erofs {

inline constexpr uint64_t kSampleDeviceBlocks = 64;
inline constexpr ValidateLimits kSampleLimits{.data_device_bytes =
                                                  kSampleDeviceBlocks * kBlockSize};

inline std::span<const uint8_t> Bytes(const std::string& image) {
  return {reinterpret_cast<const uint8_t*>(image.data()), image.size()};
}

// A true image whose bytes a test may bend.
class ImageEditor {
 public:
  explicit ImageEditor(std::string bytes) : bytes_(std::move(bytes)) {}

  const std::string& bytes() const { return bytes_; }
  std::string& mutable_bytes() { return bytes_; }

  template <typename T>
  T Get(uint64_t offset) const {
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(value));
    return value;
  }
  template <typename T>
  void Set(uint64_t offset, T value) {
    std::memcpy(bytes_.data() + offset, &value, sizeof(value));
  }
  template <typename Struct>
  void Edit(uint64_t offset, const std::function<void(Struct&)>& change) {
    Struct value = Get<Struct>(offset);
    change(value);
    Set(offset, value);
  }
  void EditSuper(const std::function<void(SuperBlock&)>& change) {
    Edit<SuperBlock>(kSuperOffset, change);
  }
  void EditInode(const std::string& path, const std::function<void(ExtendedInode&)>& change) {
    const InodeView inode = At(path);
    ASSERT_EQ(inode.xattr_offset - inode.offset, sizeof(ExtendedInode)) << path << " is compact";
    Edit<ExtendedInode>(inode.offset, change);
  }
  void EditEntry(const std::string& directory, const std::string& name,
                 const std::function<void(Dirent&)>& change) {
    Edit<Dirent>(EntryOffset(directory, name), change);
  }

  ImageView View() const {
    ImageView view(Bytes(bytes_));
    EXPECT_TRUE(view.ReadSuperBlock().ok());
    return view;
  }
  InodeView At(const std::string& path) const {
    auto parts = SplitPath(path);
    uint64_t nid = kRootNid;
    for (std::string_view part : *parts) nid = Get<Dirent>(EntryOffsetIn(nid, part)).nid;
    return *View().ReadInode(nid);
  }
  uint64_t EntryOffset(const std::string& directory, const std::string& name) const {
    return EntryOffsetIn(At(directory).nid, name);
  }
  // Where a name's bytes lie.
  uint64_t NameOffset(const std::string& directory, const std::string& name) const {
    const InodeView inode = At(directory);
    const uint64_t entry = EntryOffset(directory, name);
    return BlockOf(inode, entry) + Get<Dirent>(entry).name_offset;
  }

  void FixChecksum() {
    Set<uint32_t>(kSuperOffset + offsetof(SuperBlock, checksum), 0);
    Set<uint32_t>(kSuperOffset + offsetof(SuperBlock, checksum),
                  ~Crc32c(bytes_.data() + kSuperOffset, kBlockSize - kSuperOffset));
  }

 private:
  uint64_t BlockOf(const InodeView& inode, uint64_t entry) const {
    const bool in_tail = entry >= inode.offset && entry < inode.end();
    return in_tail ? inode.tail_offset : entry / kBlockSize * kBlockSize;
  }
  uint64_t EntryOffsetIn(uint64_t nid, std::string_view name) const {
    const ImageView view = View();
    const InodeView inode = *view.ReadInode(nid);
    std::vector<DirectoryEntry> entries;
    for (uint64_t block = 0; block < view.DirectoryBlocks(inode); ++block) {
      EXPECT_TRUE(view.ReadDirectoryBlock(inode, block, &entries).ok());
      for (size_t i = 0; i < entries.size(); ++i) {
        if (entries[i].name != name) continue;
        const uint64_t base = block < inode.block_count ? (inode.first_block + block) * kBlockSize
                                                        : inode.tail_offset;
        return base + i * sizeof(Dirent);
      }
    }
    ADD_FAILURE() << "no " << name;
    return 0;
  }

  std::string bytes_;
};

// A tree with every kind of node; all inodes but those in "big" are extended.
Tree SampleTree();
ImageEditor SampleImage();

}  // namespace esker::erofs
