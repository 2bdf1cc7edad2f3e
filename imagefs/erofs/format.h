// The subset of the EROFS on-disk format that Esker writes and accepts, as of Linux fs/erofs
// (erofs_fs.h); every other feature is refused by the validator. See docs/formats/erofs.md.
#pragma once

#include <bit>
#include <cstdint>

namespace esker::erofs {

static_assert(std::endian::native == std::endian::little, "on-disk integers are little-endian");

inline constexpr uint32_t kBlockBits = 12;
inline constexpr uint64_t kBlockSize = 1u << kBlockBits;
inline constexpr uint64_t kSlotSize = 32;  // an inode's nid is its offset in the image / kSlotSize
inline constexpr uint64_t kSuperOffset = 1024;
inline constexpr uint32_t kMagic = 0xE0F5E1E2;

inline constexpr uint32_t kCompatChecksum = 0x1;
inline constexpr uint32_t kCompatMtime = 0x2;
inline constexpr uint32_t kIncompatChunkedFile = 0x4;
inline constexpr uint32_t kIncompatDeviceTable = 0x8;

// The root comes first in the first block after the super block's: its nid must fit 16 bits.
inline constexpr uint64_t kRootNid = kBlockSize / kSlotSize;
inline constexpr uint16_t kDeviceSlotIndex = 9;  // in units of a slot: right behind the super block
inline constexpr uint64_t kDeviceSlotSize = 128;
inline constexpr uint16_t kDataDevice = 1;

inline constexpr uint64_t kMaxFileSize = INT64_MAX - kBlockSize;
inline constexpr uint32_t kMaxNanos = 999'999'999;
inline constexpr uint32_t kNoId = 0xFFFFFFFF;  // as an owner it means nobody to the kernel
inline constexpr uint32_t kMaxNameBytes = 255;
inline constexpr uint32_t kMaxSymlinkBytes = 4095;
inline constexpr uint32_t kNullBlock = 0xFFFFFFFF;  // a chunk index's block address for a hole

// The volume name of an image that has directories which its layer does not describe.
inline constexpr char kImplicitVolumeName[16] = "esker-implicit";

enum Layout : uint8_t { kFlatPlain = 0, kFlatInline = 2, kChunkBased = 4 };
inline constexpr uint16_t kFormatExtended = 0x1;
inline constexpr uint32_t kFormatLayoutShift = 1;

inline constexpr uint16_t kChunkBitsMask = 0x1F;
inline constexpr uint16_t kChunkIndexes = 0x20;

struct __attribute__((packed)) SuperBlock {
  uint32_t magic;
  uint32_t checksum;  // CRC-32C from here to the end of block 0 with this field zero, not inverted
  uint32_t feature_compat;
  uint8_t block_bits;
  uint8_t extension_slots;
  uint16_t root_nid;
  uint64_t inodes;
  uint64_t epoch_seconds;  // the time of every compact inode
  uint32_t epoch_nanos;
  uint32_t blocks;
  uint32_t meta_block;
  uint32_t xattr_block;
  uint8_t uuid[16];
  uint8_t volume_name[16];
  uint32_t feature_incompat;
  uint16_t compression;
  uint16_t extra_devices;
  uint16_t device_slot;
  uint8_t directory_block_bits;
  uint8_t xattr_prefix_count;
  uint32_t xattr_prefix_start;
  uint64_t packed_nid;
  uint8_t reserved[24];
};
static_assert(sizeof(SuperBlock) == 128);

struct __attribute__((packed)) DeviceSlot {
  uint8_t tag[64];
  uint32_t blocks;
  uint32_t mapped_block;
  uint8_t reserved[56];
};
static_assert(sizeof(DeviceSlot) == kDeviceSlotSize);

struct __attribute__((packed)) CompactInode {
  uint16_t format;
  uint16_t xattr_count;
  uint16_t mode;
  uint16_t nlink;
  uint32_t size;
  uint32_t mtime_delta;  // seconds after the epoch in newer kernels, reserved before: always 0
  uint32_t u;
  uint32_t ino;
  uint16_t uid;
  uint16_t gid;
  uint32_t reserved;
};
static_assert(sizeof(CompactInode) == 32);

struct __attribute__((packed)) ExtendedInode {
  uint16_t format;
  uint16_t xattr_count;
  uint16_t mode;
  uint16_t reserved;
  uint64_t size;
  uint32_t u;  // first block (flat), device number (devices), chunk format (chunk-based)
  uint32_t ino;
  uint32_t uid;
  uint32_t gid;
  uint64_t mtime_seconds;
  uint32_t mtime_nanos;
  uint32_t nlink;
  uint8_t reserved2[16];
};
static_assert(sizeof(ExtendedInode) == 64);

struct __attribute__((packed)) XattrHeader {
  uint32_t name_filter;
  uint8_t shared_count;
  uint8_t reserved[7];
};
static_assert(sizeof(XattrHeader) == 12);

struct __attribute__((packed)) XattrEntry {
  uint8_t name_length;
  uint8_t name_index;
  uint16_t value_size;
};
static_assert(sizeof(XattrEntry) == 4);

struct __attribute__((packed)) ChunkIndex {
  uint16_t block_high;
  uint16_t device;
  uint32_t block;
};
static_assert(sizeof(ChunkIndex) == 8);

struct __attribute__((packed)) Dirent {
  uint64_t nid;
  uint16_t name_offset;
  uint8_t file_type;
  uint8_t reserved;
};
static_assert(sizeof(Dirent) == 12);

inline constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}
inline constexpr uint64_t BlocksOf(uint64_t bytes) {
  return bytes / kBlockSize + (bytes % kBlockSize != 0);
}

}  // namespace esker::erofs
