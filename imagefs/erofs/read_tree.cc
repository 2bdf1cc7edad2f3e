#include <unordered_map>

#include "image_view.h"
#include "read_node.h"
#include "tree_impl.h"

namespace esker::erofs {
namespace {

class TreeReader {
 public:
  TreeReader(const ImageView& image, Tree::Impl& tree) : image_(image), tree_(tree) {}

  Status Run() {
    ESKER_ASSIGN_OR_RETURN(const InodeView root, image_.ReadInode(kRootNid));
    ESKER_ASSIGN_OR_RETURN(tree_.at(Tree::Impl::kRoot).node, ReadNode(image_, root));
    pending_.push_back({root, Tree::Impl::kRoot});
    while (!pending_.empty()) {
      const Pending next = pending_.back();
      pending_.pop_back();
      ESKER_RETURN_IF_ERROR(ReadDirectory(next));
    }
    return OkStatus();
  }

 private:
  struct Pending {
    InodeView inode;
    InodeId id;
  };

  Status ReadDirectory(const Pending& directory) {
    std::vector<DirectoryEntry> entries;
    for (uint64_t block = 0; block < image_.DirectoryBlocks(directory.inode); ++block) {
      ESKER_RETURN_IF_ERROR(image_.ReadDirectoryBlock(directory.inode, block, &entries));
      for (const DirectoryEntry& entry : entries) {
        if (entry.name == "." || entry.name == "..") continue;
        ESKER_RETURN_IF_ERROR(AddEntry(directory.id, entry));
      }
    }
    return OkStatus();
  }

  Status AddEntry(InodeId directory, const DirectoryEntry& entry) {
    if (auto linked = linked_.find(entry.nid); linked != linked_.end()) {
      tree_.AddName(directory, entry.name, linked->second);
      return OkStatus();
    }
    ESKER_ASSIGN_OR_RETURN(const InodeView inode, image_.ReadInode(entry.nid));
    ESKER_ASSIGN_OR_RETURN(Node node, ReadNode(image_, inode));
    const InodeId id = tree_.Allocate(std::move(node), /*own=*/true);
    tree_.AddName(directory, entry.name, id);
    if (inode.type == FileType::kDirectory) {
      pending_.push_back({inode, id});
    } else if (inode.nlink > 1) {
      linked_.emplace(entry.nid, id);
    }
    return OkStatus();
  }

  const ImageView& image_;
  Tree::Impl& tree_;
  std::vector<Pending> pending_;
  std::unordered_map<uint64_t, InodeId> linked_;
};

}  // namespace

Result<Tree> ReadTree(std::span<const uint8_t> image) {
  ImageView view(image);
  ESKER_RETURN_IF_ERROR(view.ReadSuperBlock());
  ESKER_RETURN_IF_ERROR(
      Validate(image, {.data_device_bytes = view.device_blocks() * kBlockSize}).status());
  Tree tree;
  ESKER_RETURN_IF_ERROR(TreeReader(view, tree.mutable_impl()).Run());
  return tree;
}

}  // namespace esker::erofs
