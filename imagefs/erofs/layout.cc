#include "layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "chunks.h"
#include "directory.h"
#include "xattr.h"

namespace esker::erofs {
namespace {

constexpr uint64_t kUnplaced = ~uint64_t{0};

struct Time {
  int64_t seconds;
  uint32_t nanos;
  auto operator<=>(const Time&) const = default;
};
struct TimeHash {
  size_t operator()(const Time& time) const {
    return std::hash<uint64_t>()(static_cast<uint64_t>(time.seconds) * 1'000'003 + time.nanos);
  }
};

// The commonest time of the tree becomes the epoch, so that most inodes can be compact where an
// image was built with one time for all. Ties go to the earliest.
Time CommonestTime(const Tree::Impl& tree) {
  std::unordered_map<Time, uint64_t, TimeHash> counts;
  Time best{0, 0};
  uint64_t best_count = 0;
  for (const Inode& inode : tree.inodes) {
    if (inode.names == 0) continue;
    const Time time{inode.node.mtime_seconds, inode.node.mtime_nanos};
    const uint64_t count = ++counts[time];
    if (count > best_count) best_count = count;
  }
  bool first = true;
  for (const auto& [time, count] : counts) {
    if (count != best_count) continue;
    if (first || time < best) best = time;
    first = false;
  }
  return best;
}

class Planner {
 public:
  Planner(const Tree::Impl& tree, uint64_t max_bytes) : tree_(tree), max_bytes_(max_bytes) {}

  Result<ImagePlan> Run() {
    const Time epoch = CommonestTime(tree_);
    plan_.epoch_seconds = epoch.seconds;
    plan_.epoch_nanos = epoch.nanos;
    plan_.offsets.assign(tree_.inodes.size(), kUnplaced);
    plan_.inodes.reserve(tree_.live());
    ESKER_RETURN_IF_ERROR(Place(Tree::Impl::kRoot, Tree::Impl::kRoot));
    std::vector<InodeId> pending = {Tree::Impl::kRoot};
    while (!pending.empty()) {
      const InodeId directory = pending.back();
      pending.pop_back();
      const size_t first_pushed = pending.size();
      for (const auto& [name, child] : *tree_.at(directory).children) {
        if (plan_.offsets[child] != kUnplaced) continue;  // another name of a placed file
        ESKER_RETURN_IF_ERROR(Place(child, directory));
        if (tree_.at(child).IsDirectory()) pending.push_back(child);
      }
      std::reverse(pending.begin() + first_pushed, pending.end());
    }
    ESKER_RETURN_IF_ERROR(PlaceBlocks());
    return std::move(plan_);
  }

 private:
  Status Place(InodeId id, InodeId parent) {
    const Inode& inode = tree_.at(id);
    PlacedInode placed;
    placed.id = id;
    placed.parent = parent;
    placed.links = Links(inode);
    placed.xattr_bytes = static_cast<uint32_t>(XattrBodySize(inode.node.xattrs));
    if (inode.IsDirectory()) {
      DirectorySizer sizer;
      for (const NamedChild& entry : EntriesOf(tree_, id, parent)) sizer.Add(entry.name);
      placed.content_bytes = sizer.size();
    } else {
      placed.content_bytes = inode.node.symlink_target.size();
    }
    placed.compact = FitsCompact(inode.node, placed);
    const uint64_t bytes = ChooseLayout(inode.node, placed);
    plan_.offsets[id] = placed.offset;
    next_ = placed.tail_offset() + bytes;
    plan_.inodes.push_back(placed);
    return CheckSize();
  }

  uint32_t Links(const Inode& inode) const {
    if (!inode.IsDirectory()) return inode.names;
    uint32_t links = 2;
    for (const auto& [name, child] : *inode.children) links += tree_.at(child).IsDirectory();
    return links;
  }

  bool FitsCompact(const Node& node, const PlacedInode& placed) const {
    return node.mtime_seconds == plan_.epoch_seconds && node.mtime_nanos == plan_.epoch_nanos &&
           node.uid <= UINT16_MAX && node.gid <= UINT16_MAX && placed.links <= UINT16_MAX &&
           node.size <= UINT32_MAX && placed.content_bytes <= UINT32_MAX;
  }

  // Sets the place and the layout; returns the bytes needed behind the xattrs.
  uint64_t ChooseLayout(const Node& node, PlacedInode& placed) {
    placed.offset = NextOffset(placed.core_bytes());
    if (node.type == FileType::kRegular && node.size > 0) {
      placed.layout = kChunkBased;
      placed.chunk_shift = static_cast<uint8_t>(ChunkShift(node));
      const uint64_t tail = placed.tail_offset();
      const uint64_t count = ChunkCount(node.size, placed.chunk_shift);
      if (count > max_bytes_ / sizeof(ChunkIndex)) return max_bytes_;  // CheckSize() refuses
      return RoundUp(tail, sizeof(ChunkIndex)) - tail + count * sizeof(ChunkIndex);
    }
    if (placed.content_bytes == 0) return 0;
    const uint64_t in_tail = placed.content_bytes % kBlockSize;
    if (in_tail != 0 && PlaceInline(placed, in_tail)) {
      placed.layout = kFlatInline;
      return in_tail;
    }
    return 0;
  }

  // An inode with inline content lies in one block as a whole (older kernels, 6.1 among them,
  // refuse symbolic links otherwise): here if it fits, else in the next block if that wastes less
  // than a block of its own would.
  bool PlaceInline(PlacedInode& placed, uint64_t bytes) {
    const uint64_t whole = placed.core_bytes() + placed.xattr_bytes + bytes;
    auto fits_at = [&](uint64_t offset) { return offset % kBlockSize + whole <= kBlockSize; };
    if (fits_at(placed.offset)) return true;
    const uint64_t next_block = RoundUp(placed.offset, kBlockSize);
    const uint64_t skipped = next_block - placed.offset;
    if (!fits_at(next_block) || skipped > kBlockSize - bytes) return false;
    placed.offset = next_block;
    return true;
  }

  // The next slot at which an inode's fixed part does not cross a block.
  uint64_t NextOffset(uint64_t core_bytes) const {
    const uint64_t offset = RoundUp(next_, kSlotSize);
    const bool crosses = offset % kBlockSize + core_bytes > kBlockSize;
    return crosses ? RoundUp(offset, kBlockSize) : offset;
  }

  // Full blocks of directories, and symbolic links too long to be inline, follow all inodes.
  Status PlaceBlocks() {
    uint64_t next_block = BlocksOf(next_);
    for (PlacedInode& placed : plan_.inodes) {
      if (placed.layout == kChunkBased || placed.content_bytes == 0) continue;
      const uint64_t blocks = placed.layout == kFlatInline ? placed.content_bytes / kBlockSize
                                                           : BlocksOf(placed.content_bytes);
      if (blocks == 0) continue;
      placed.first_block = next_block;
      next_block += blocks;
    }
    plan_.bytes = next_ = next_block * kBlockSize;
    return CheckSize();
  }

  Status CheckSize() const {
    if (next_ <= max_bytes_) return OkStatus();
    return ResourceExhaustedError(fmt::format(
        "the layer's metadata needs more than {} bytes (very many files, or files with very many "
        "holes)",
        max_bytes_));
  }

  const Tree::Impl& tree_;
  const uint64_t max_bytes_;
  ImagePlan plan_;
  uint64_t next_ = kBlockSize;  // behind the super block's block
};

}  // namespace

std::vector<NamedChild> EntriesOf(const Tree::Impl& tree, InodeId directory, InodeId parent) {
  std::vector<NamedChild> entries;
  const ChildMap& children = *tree.at(directory).children;
  entries.reserve(children.size() + 2);
  const NamedChild dots[] = {{".", directory}, {"..", parent}};
  size_t dot = 0;
  for (const auto& [name, id] : children) {
    while (dot < 2 && dots[dot].name < name) entries.push_back(dots[dot++]);
    entries.push_back({name, id});
  }
  while (dot < 2) entries.push_back(dots[dot++]);
  return entries;
}

Result<ImagePlan> PlanImage(const Tree::Impl& tree, uint64_t max_bytes) {
  return Planner(tree, max_bytes).Run();
}

}  // namespace esker::erofs
