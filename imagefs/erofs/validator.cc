#include <fmt/format.h>

#include "image_view.h"
#include "node_rules.h"

namespace esker::erofs {
namespace {

// Walks an image once. Every part is claimed before it is read and nothing is claimed twice, so the
// work is linear in the image; the memory is 5/32 of the image and a stack of directories.
class Validator {
 public:
  Validator(const ImageView& image, const ValidateLimits& limits)
      : image_(image),
        limits_(limits),
        links_(image.size() / kSlotSize, 0),
        claimed_(image.size() / kSlotSize, false) {}

  Result<Summary> Run() {
    ESKER_RETURN_IF_ERROR(Claim(kRootNid, 0, kBlockSize));
    ESKER_RETURN_IF_ERROR(AddDirectory(kRootNid, kRootNid));
    while (!pending_.empty()) {
      const Pending next = pending_.back();
      pending_.pop_back();
      ESKER_RETURN_IF_ERROR(WalkDirectory(next));
    }
    ESKER_RETURN_IF_ERROR(CheckLinkCounts());
    ESKER_RETURN_IF_ERROR(CheckUnclaimed());
    if (summary_.inodes != image_.super().inodes) {
      return DataLossError(fmt::format("EROFS metadata image: {} inodes, but {} in the super block",
                                       summary_.inodes, uint64_t{image_.super().inodes}));
    }
    if (implicit_seen_ != image_.has_implicit()) {
      return DataLossError(
          "EROFS metadata image: super block: says otherwise about implicit directories");
    }
    summary_.data_device_bytes = image_.device_blocks() * kBlockSize;
    return summary_;
  }

 private:
  static constexpr uint32_t kSeenDirectory = UINT32_MAX;

  struct Pending {
    uint32_t nid;
    uint32_t parent;
  };

  Status Claim(uint64_t nid, uint64_t begin, uint64_t end) {
    for (uint64_t slot = begin / kSlotSize; slot < RoundUp(end, kSlotSize) / kSlotSize; ++slot) {
      if (claimed_[slot]) return BadInode(nid, "shares bytes with something else");
      claimed_[slot] = true;
    }
    return OkStatus();
  }

  Status CountInode(const InodeView& inode) {
    if (++summary_.inodes > limits_.max_inodes) {
      return ResourceExhaustedError(
          fmt::format("EROFS metadata image: more than {} inodes", limits_.max_inodes));
    }
    ESKER_RETURN_IF_ERROR(Claim(inode.nid, inode.offset, inode.end()));
    if (inode.block_count > 0) {
      const uint64_t begin = inode.first_block * kBlockSize;
      ESKER_RETURN_IF_ERROR(Claim(inode.nid, begin, begin + inode.block_count * kBlockSize));
    }
    ESKER_RETURN_IF_ERROR(image_.CheckPadding(inode));
    return image_.ForEachXattr(inode, [&](std::string_view name, std::string_view) {
      implicit_seen_ = implicit_seen_ || name == kImplicitName;
    });
  }

  Status AddDirectory(uint64_t nid, uint64_t parent) {
    ESKER_ASSIGN_OR_RETURN(const InodeView inode, image_.ReadInode(nid));
    if (inode.type != FileType::kDirectory) return BadInode(nid, "is not a directory");
    if (links_[nid] != 0) return BadInode(nid, "a directory with two names");
    links_[nid] = kSeenDirectory;
    ++summary_.directories;
    ESKER_RETURN_IF_ERROR(CountInode(inode));
    pending_.push_back({static_cast<uint32_t>(nid), static_cast<uint32_t>(parent)});
    return OkStatus();
  }

  Status AddFile(uint64_t nid, uint8_t file_type) {
    ESKER_ASSIGN_OR_RETURN(const InodeView inode, image_.ReadInode(nid));
    if (DirentType(inode.type) != file_type || links_[nid] == kSeenDirectory) {
      return BadInode(nid, "a directory entry names another type");
    }
    // nlink is compared at the end; stopping here keeps the counter from wrapping.
    if (links_[nid] == inode.nlink) return BadInode(nid, "more names than its link count");
    if (links_[nid]++ > 0) return OkStatus();
    ESKER_RETURN_IF_ERROR(CountInode(inode));
    if (inode.type == FileType::kSymlink) return image_.ReadSymlink(inode).status();
    for (uint64_t i = 0; i < inode.chunk_count; ++i) {
      ESKER_RETURN_IF_ERROR(image_.ReadChunk(inode, i).status());
    }
    return OkStatus();
  }

  Status WalkDirectory(Pending directory) {
    ESKER_ASSIGN_OR_RETURN(const InodeView inode, image_.ReadInode(directory.nid));
    std::string_view previous;
    uint32_t subdirectories = 0;
    int dots = 0;
    for (uint64_t block = 0; block < image_.DirectoryBlocks(inode); ++block) {
      ESKER_RETURN_IF_ERROR(image_.ReadDirectoryBlock(inode, block, &entries_));
      for (const DirectoryEntry& entry : entries_) {
        if (entry.name <= previous) return BadInode(inode.nid, "names twice or out of order");
        previous = entry.name;
        if (entry.name == "." || entry.name == "..") {
          ++dots;
          ESKER_RETURN_IF_ERROR(CheckDot(directory, entry));
        } else if (entry.file_type == DirentType(FileType::kDirectory)) {
          ++subdirectories;
          ESKER_RETURN_IF_ERROR(AddDirectory(entry.nid, directory.nid));
        } else {
          ESKER_RETURN_IF_ERROR(AddFile(entry.nid, entry.file_type));
        }
      }
    }
    if (dots != 2) return BadInode(inode.nid, "\".\" or \"..\" is missing");
    if (inode.nlink != uint64_t{subdirectories} + 2) {
      return BadInode(inode.nid,
                      fmt::format("{} links, but {} subdirectories", inode.nlink, subdirectories));
    }
    return OkStatus();
  }

  static Status CheckDot(Pending directory, const DirectoryEntry& entry) {
    const uint64_t expected = entry.name == "." ? directory.nid : directory.parent;
    if (entry.nid == expected && entry.file_type == DirentType(FileType::kDirectory)) {
      return OkStatus();
    }
    return BadInode(directory.nid, fmt::format("a false \"{}\"", entry.name));
  }

  Status CheckLinkCounts() const {
    for (uint64_t nid = kRootNid; nid < links_.size(); ++nid) {
      if (links_[nid] == 0 || links_[nid] == kSeenDirectory) continue;
      ESKER_ASSIGN_OR_RETURN(const InodeView inode, image_.ReadInode(nid));
      if (inode.nlink != links_[nid]) {
        return BadInode(nid, fmt::format("{} links, but {} names", inode.nlink, links_[nid]));
      }
    }
    return OkStatus();
  }

  Status CheckUnclaimed() const {
    for (uint64_t slot = 0; slot < claimed_.size(); ++slot) {
      if (claimed_[slot] || image_.AllZero(slot * kSlotSize, (slot + 1) * kSlotSize)) continue;
      return DataLossError(
          fmt::format("EROFS metadata image: bytes at {} belong to nothing but are not zero",
                      slot * kSlotSize));
    }
    return OkStatus();
  }

  const ImageView& image_;
  const ValidateLimits& limits_;
  std::vector<uint32_t> links_;  // by nid: names found, or kSeenDirectory
  std::vector<bool> claimed_;    // by slot
  std::vector<Pending> pending_;
  std::vector<DirectoryEntry> entries_;  // of one block
  bool implicit_seen_ = false;
  Summary summary_;
};

}  // namespace

Result<Summary> Validate(std::span<const uint8_t> image, const ValidateLimits& limits) {
  ImageView view(image);
  ESKER_RETURN_IF_ERROR(view.ReadSuperBlock());
  // A last block that is not whole does not count: the kernel cannot read it.
  if (view.device_blocks() > limits.data_device_bytes / kBlockSize) {
    return DataLossError(fmt::format(
        "EROFS metadata image: wants a data device of {} blocks, but the data has {} bytes",
        view.device_blocks(), limits.data_device_bytes));
  }
  return Validator(view, limits).Run();
}

}  // namespace esker::erofs
