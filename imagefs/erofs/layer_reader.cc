#include <algorithm>

#include "imagefs/erofs_reader.h"
#include "node_rules.h"
#include "read_node.h"

namespace esker::erofs {
namespace {

Status ReadExtents(const ImageView& image, const InodeView& inode, std::vector<Extent>& extents) {
  const uint64_t chunk_bytes = kBlockSize << inode.chunk_shift;
  for (uint64_t i = 0; i < inode.chunk_count; ++i) {
    ESKER_ASSIGN_OR_RETURN(const ChunkIndex index, image.ReadChunk(inode, i));
    if (index.block == kNullBlock) continue;
    const Extent extent{i * chunk_bytes, std::min(chunk_bytes, inode.size - i * chunk_bytes),
                        index.block * kBlockSize};
    if (!extents.empty() &&
        extents.back().file_offset + extents.back().length == extent.file_offset &&
        extents.back().device_offset + extents.back().length == extent.device_offset) {
      extents.back().length += extent.length;
    } else {
      extents.push_back(extent);
    }
  }
  return OkStatus();
}

}  // namespace

Result<Node> ReadNode(const ImageView& image, const InodeView& inode) {
  Node node;
  node.type = inode.type;
  node.mode = inode.mode & 07777;
  node.uid = inode.uid;
  node.gid = inode.gid;
  node.mtime_seconds = inode.mtime_seconds;
  node.mtime_nanos = inode.mtime_nanos;
  if (inode.type == FileType::kRegular) {
    node.size = inode.size;
    ESKER_RETURN_IF_ERROR(ReadExtents(image, inode, node.extents));
  } else if (inode.type == FileType::kSymlink) {
    ESKER_ASSIGN_OR_RETURN(node.symlink_target, image.ReadSymlink(inode));
  } else if (IsDevice(inode.type)) {
    DecodeDevice(inode.device, &node.device_major, &node.device_minor);
  }
  ESKER_RETURN_IF_ERROR(image.ForEachXattr(
      inode,
      [&](const std::string& name, std::string_view value) { node.xattrs.emplace(name, value); }));
  return node;
}

struct LayerReader::Impl {
  explicit Impl(std::span<const uint8_t> image) : view(image) {}
  ImageView view;
};

LayerReader::LayerReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LayerReader::LayerReader(LayerReader&&) noexcept = default;
LayerReader& LayerReader::operator=(LayerReader&&) noexcept = default;
LayerReader::~LayerReader() = default;

Result<LayerReader> LayerReader::Open(std::span<const uint8_t> image) {
  auto impl = std::make_unique<Impl>(image);
  ESKER_RETURN_IF_ERROR(impl->view.ReadSuperBlock());
  ESKER_RETURN_IF_ERROR(
      Validate(image, {.data_device_bytes = impl->view.device_blocks() * kBlockSize}).status());
  return LayerReader(std::move(impl));
}

uint64_t LayerReader::root() const { return kRootNid; }

uint64_t LayerReader::data_device_bytes() const { return impl_->view.device_blocks() * kBlockSize; }

Result<Node> LayerReader::Read(uint64_t nid, Info* info) const {
  ESKER_ASSIGN_OR_RETURN(const InodeView inode, impl_->view.ReadInode(nid));
  info->type = inode.type;
  info->link_count = inode.nlink;
  return ReadNode(impl_->view, inode);
}

Status LayerReader::ForEachChild(uint64_t directory, const Visit& visit) const {
  ESKER_ASSIGN_OR_RETURN(const InodeView inode, impl_->view.ReadInode(directory));
  if (inode.type != FileType::kDirectory) return BadInode(directory, "not a directory");
  std::vector<DirectoryEntry> entries;
  for (uint64_t block = 0; block < impl_->view.DirectoryBlocks(inode); ++block) {
    ESKER_RETURN_IF_ERROR(impl_->view.ReadDirectoryBlock(inode, block, &entries));
    for (const DirectoryEntry& entry : entries) {
      if (entry.name == "." || entry.name == "..") continue;
      ESKER_RETURN_IF_ERROR(visit(entry.name, entry.nid));
    }
  }
  return OkStatus();
}

}  // namespace esker::erofs
