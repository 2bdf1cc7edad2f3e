// EROFS images without mkfs: a tree of nodes in, a metadata image out; and a validator that walks a
// metadata image before the kernel may. Format: Linux fs/erofs/erofs_fs.h; see
// docs/formats/erofs.md.
//
// A layer is two blobs: the metadata image made here (super block, inodes, directories, xattrs,
// symlinks) and a data blob (device 1 in its device table) that holds all file content. Files are
// chunk-based inodes with chunk indexes into device 1; a contiguous file is one large extent.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace esker::erofs {

enum class FileType : uint8_t {
  kRegular,
  kDirectory,
  kSymlink,
  kCharDevice,
  kBlockDevice,
  kFifo,
  kSocket
};

// A run of file content in the data device. Offsets are multiples of 4096; length may end anywhere
// in its last block only at end of file. What no extent covers is a hole.
struct Extent {
  uint64_t file_offset = 0;
  uint64_t length = 0;
  uint64_t device_offset = 0;
};

struct Node {
  FileType type = FileType::kRegular;
  uint16_t mode = 0644;  // permission bits only (07777)
  uint32_t uid = 0, gid = 0;
  int64_t mtime_seconds = 0;
  uint32_t mtime_nanos = 0;
  uint32_t device_major = 0, device_minor = 0;
  uint64_t size = 0;                          // regular files
  std::string symlink_target;                 // at most 4095 bytes
  std::map<std::string, std::string> xattrs;  // full names: "user.x", "security.capability", ...
  std::vector<Extent> extents;                // sorted by file_offset, not overlapping
};

// One layer's file tree. Paths are bytes; "", ".", "/" name the root; empty and "." components are
// dropped, ".." stops at the root, and nothing is ever followed: where a non-directory is in the
// way of a later entry, the later entry wins and a directory takes its place. Missing parents are
// made (root:root, 0755, mtime 0, marked implicit: see implicit_directories.h). Thread-compatible.
// Inserting is amortised O(log siblings).
class Tree {
 public:
  Tree();
  ~Tree();
  Tree(Tree&&) noexcept;
  Tree& operator=(Tree&&) noexcept;

  // Puts a node; what was there before is replaced, except that a directory over a directory keeps
  // its children. INVALID_ARGUMENT: a component over 255 bytes, a NUL, a bad extent.
  Status Put(std::string_view path, Node node);
  // A second name for the node at `target` (not a directory). NOT_FOUND if target is not in the
  // tree.
  Status Link(std::string_view path, std::string_view target);
  // The overlay whiteout for `path` (character device 0:0). Never touches this layer's own entries:
  // if the layer itself has that name, the whiteout is dropped (a directory is marked opaque
  // instead).
  Status Whiteout(std::string_view path);
  // Marks a directory opaque (trusted.overlay.opaque=y), making it if missing.
  Status Opaque(std::string_view path);

  const Node* Find(std::string_view path) const;
  // Children in byte order; empty for non-directories.
  std::vector<std::pair<std::string, const Node*>> Children(std::string_view path) const;
  uint32_t LinkCount(std::string_view path) const;
  size_t inode_count() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }
  Impl& mutable_impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

struct WriteOptions {
  // Size of the data blob, whole 4096-byte blocks (Linux answers EIO for a block that the file does
  // not hold in full: pad the blob with zeros); 0: the image has no extra device.
  uint64_t data_device_bytes = 0;
  // A small tree may need a huge image (a file of terabytes with 4096-byte extents).
  uint64_t max_metadata_bytes = uint64_t{1} << 30;
};
// The metadata image, a multiple of 4096 bytes. Deterministic: same tree, same bytes (the build
// time and UUID in the super block are derived from content). RESOURCE_EXHAUSTED beyond EROFS's
// limits or max_metadata_bytes; INVALID_ARGUMENT: an extent ends beyond the device, or the
// device is not whole blocks.
Result<std::string> WriteMetadata(const Tree& tree, const WriteOptions& options);

struct Summary {
  uint64_t inodes = 0;
  uint64_t directories = 0;
  uint64_t data_device_bytes = 0;
};
struct ValidateLimits {
  uint64_t max_inodes = 20'000'000;
  uint64_t data_device_bytes = 0;  // extents must lie inside the whole blocks of this
};
// Walks everything the kernel would parse: super block (checksum, features we use and no others),
// every inode reachable and none twice but through hard links with right counts, directories sorted
// and well-formed with true "." and "..", no cycles, xattrs in bounds and no others than allowed,
// symlinks, chunk indexes inside the device. DATA_LOSS says what and where. An image made by
// WriteMetadata always passes. The image is untrusted.
Result<Summary> Validate(std::span<const uint8_t> image, const ValidateLimits& limits);

// Reads a validated image back into a tree (for tests, export and merging).
Result<Tree> ReadTree(std::span<const uint8_t> image);

}  // namespace esker::erofs
