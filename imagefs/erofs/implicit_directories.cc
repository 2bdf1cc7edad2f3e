#include "imagefs/implicit_directories.h"

#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "image_view.h"
#include "node_rules.h"
#include "tree_impl.h"
#include "xattr.h"

namespace esker::erofs {
namespace {

constexpr size_t kMaxPlaces = 1'000'000;

// What a directory takes over from its lower namesake.
struct Attributes {
  uint16_t mode = 0755;
  uint32_t uid = 0, gid = 0;
  int64_t mtime_seconds = 0;
  uint32_t mtime_nanos = 0;
  XattrMap xattrs;  // without the marks of ours and of the overlay
  bool operator==(const Attributes&) const = default;
};

struct DirectoryFacts {
  Attributes attributes;
  bool implicit = false;
  bool opaque = false;
};

Result<DirectoryFacts> FactsOf(const ImageView& image, const InodeView& inode) {
  DirectoryFacts facts;
  facts.attributes = {static_cast<uint16_t>(inode.mode & 07777),
                      inode.uid,
                      inode.gid,
                      inode.mtime_seconds,
                      inode.mtime_nanos,
                      {}};
  ESKER_RETURN_IF_ERROR(
      image.ForEachXattr(inode, [&](const std::string& name, std::string_view value) {
        if (name == kImplicitName) {
          facts.implicit = true;
        } else if (name == kOpaqueName) {
          facts.opaque = true;
        } else {
          facts.attributes.xattrs.emplace(name, value);
        }
      }));
  return facts;
}

// The entry of that name, or nothing.
Result<std::optional<DirectoryEntry>> FindEntry(const ImageView& image, const InodeView& directory,
                                                std::string_view name) {
  std::vector<DirectoryEntry> entries;
  uint64_t low = 0, high = image.DirectoryBlocks(directory);
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    ESKER_RETURN_IF_ERROR(image.ReadDirectoryBlock(directory, middle, &entries));
    if (name < entries.front().name) {
      high = middle;
    } else if (name > entries.back().name) {
      low = middle + 1;
    } else {
      for (const DirectoryEntry& entry : entries) {
        if (entry.name == name) return std::optional(entry);
      }
      break;
    }
  }
  return std::optional<DirectoryEntry>();
}

Result<ImageView> OpenImage(std::span<const uint8_t> image) {
  ImageView view(image);
  ESKER_RETURN_IF_ERROR(view.ReadSuperBlock());
  ESKER_RETURN_IF_ERROR(
      Validate(image, {.data_device_bytes = view.device_blocks() * kBlockSize}).status());
  return view;
}

}  // namespace

bool HasImplicitDirectories(std::span<const uint8_t> first_block) {
  SuperBlock super;
  if (first_block.size() < kSuperOffset + sizeof(super)) return false;
  std::memcpy(&super, first_block.data() + kSuperOffset, sizeof(super));
  return std::memcmp(super.volume_name, kImplicitVolumeName, sizeof(super.volume_name)) == 0;
}

struct ImplicitDirectories::Impl {
  using PlaceId = uint32_t;
  static constexpr PlaceId kRoot = 0;
  static constexpr PlaceId kNone = UINT32_MAX;

  // A path that matters, and what the layers seen so far make of it.
  struct Place {
    std::map<std::string, PlaceId, std::less<>> children;
    std::optional<Attributes> state;  // nothing: no directory is there
  };
  std::deque<Place> places{1};

  Result<PlaceId> ChildOf(PlaceId parent, std::string_view name) {
    auto& children = places[parent].children;
    auto it = children.find(name);
    if (it != children.end()) return it->second;
    if (places.size() >= kMaxPlaces) {
      return ResourceExhaustedError(
          fmt::format("the image's layers have more than {} directories without an entry of their "
                      "own; write the layers with entries for directories",
                      kMaxPlaces));
    }
    const auto made = static_cast<PlaceId>(places.size());
    children.emplace(name, made);
    places.emplace_back();
    return made;
  }

  // --- Want ------------------------------------------------------------------------------------
  struct Seen {
    size_t parent;
    std::string_view name;
    uint64_t nid;
    PlaceId place = kNone;
  };

  Status AddPlaces(std::vector<Seen>& seen, size_t index) {
    std::vector<size_t> way;
    for (; seen[index].place == kNone; index = seen[index].parent) way.push_back(index);
    PlaceId place = seen[index].place;
    for (; !way.empty(); way.pop_back()) {
      ESKER_ASSIGN_OR_RETURN(place, ChildOf(place, seen[way.back()].name));
      seen[way.back()].place = place;
    }
    return OkStatus();
  }

  Status Want(const ImageView& image) {
    std::vector<Seen> seen = {{0, "", kRootNid, kRoot}};
    std::vector<DirectoryEntry> entries;
    for (size_t i = 0; i < seen.size(); ++i) {
      ESKER_ASSIGN_OR_RETURN(const InodeView inode, image.ReadInode(seen[i].nid));
      ESKER_ASSIGN_OR_RETURN(const DirectoryFacts facts, FactsOf(image, inode));
      if (facts.implicit) ESKER_RETURN_IF_ERROR(AddPlaces(seen, i));
      for (uint64_t block = 0; block < image.DirectoryBlocks(inode); ++block) {
        ESKER_RETURN_IF_ERROR(image.ReadDirectoryBlock(inode, block, &entries));
        for (const DirectoryEntry& entry : entries) {
          if (entry.file_type != DirentType(FileType::kDirectory)) continue;
          if (entry.name == "." || entry.name == "..") continue;
          seen.push_back({i, entry.name, entry.nid});
        }
      }
    }
    return OkStatus();
  }

  // --- Resolve ---------------------------------------------------------------------------------
  // Nothing is left of what lay at these places, or below them.
  void Clear(PlaceId top) {
    std::vector<PlaceId> pending = {top};
    while (!pending.empty()) {
      Place& place = places[pending.back()];
      pending.pop_back();
      place.state.reset();
      for (const auto& [name, child] : place.children) pending.push_back(child);
    }
  }

  // One directory of the layer over what lies below it; true if its attributes are wrong.
  bool Merge(Place& place, DirectoryFacts facts) {
    bool wrong = false;
    if (!facts.implicit) {
      place.state = std::move(facts.attributes);
    } else {
      if (!place.state) place.state.emplace();
      wrong = *place.state != facts.attributes;
    }
    if (facts.opaque) {
      for (const auto& [name, child] : place.children) Clear(child);
    }
    return wrong;
  }

  Result<bool> Apply(const ImageView& image) {
    bool wrong = false;
    std::vector<std::pair<PlaceId, uint64_t>> pending = {{kRoot, kRootNid}};
    while (!pending.empty()) {
      const auto [id, nid] = pending.back();
      pending.pop_back();
      ESKER_ASSIGN_OR_RETURN(const InodeView inode, image.ReadInode(nid));
      ESKER_ASSIGN_OR_RETURN(DirectoryFacts facts, FactsOf(image, inode));
      if (Merge(places[id], std::move(facts))) wrong = true;
      for (const auto& [name, child] : places[id].children) {
        ESKER_ASSIGN_OR_RETURN(const std::optional<DirectoryEntry> entry,
                               FindEntry(image, inode, name));
        if (!entry) continue;
        if (entry->file_type == DirentType(FileType::kDirectory)) {
          pending.emplace_back(child, entry->nid);
        } else {
          Clear(child);
        }
      }
    }
    return wrong;
  }

  Status Mend(Tree::Impl& tree) const {
    std::vector<std::pair<PlaceId, InodeId>> pending = {{kRoot, Tree::Impl::kRoot}};
    while (!pending.empty()) {
      const auto [id, inode_id] = pending.back();
      pending.pop_back();
      Inode& inode = tree.at(inode_id);
      if (IsImplicit(inode.node)) ESKER_RETURN_IF_ERROR(Take(*places[id].state, inode.node));
      for (const auto& [name, child] : places[id].children) {
        auto it = inode.children->find(name);
        if (it == inode.children->end() || !tree.at(it->second).IsDirectory()) continue;
        pending.emplace_back(child, it->second);
      }
    }
    return OkStatus();
  }

  static Status Take(const Attributes& from, Node& node) {
    XattrMap xattrs = from.xattrs;
    for (std::string_view mark : {kOpaqueName, kImplicitName}) {
      auto it = node.xattrs.find(std::string(mark));
      if (it != node.xattrs.end()) xattrs.insert(*it);
    }
    ESKER_RETURN_IF_ERROR(CheckXattrs(node.type, xattrs));
    node.mode = from.mode;
    node.uid = from.uid;
    node.gid = from.gid;
    node.mtime_seconds = from.mtime_seconds;
    node.mtime_nanos = from.mtime_nanos;
    node.xattrs = std::move(xattrs);
    return OkStatus();
  }
};

ImplicitDirectories::ImplicitDirectories() : impl_(std::make_unique<Impl>()) {}
ImplicitDirectories::~ImplicitDirectories() = default;

Status ImplicitDirectories::Want(std::span<const uint8_t> image) {
  ESKER_ASSIGN_OR_RETURN(const ImageView view, OpenImage(image));
  return impl_->Want(view);
}

Result<std::optional<std::string>> ImplicitDirectories::Resolve(std::span<const uint8_t> image) {
  ESKER_ASSIGN_OR_RETURN(const ImageView view, OpenImage(image));
  ESKER_ASSIGN_OR_RETURN(const bool wrong, impl_->Apply(view));
  if (!wrong) return std::optional<std::string>();
  ESKER_ASSIGN_OR_RETURN(Tree tree, ReadTree(image));
  ESKER_RETURN_IF_ERROR(impl_->Mend(tree.mutable_impl()));
  WriteOptions options;
  options.data_device_bytes = view.device_blocks() * kBlockSize;
  ESKER_ASSIGN_OR_RETURN(std::string mended, WriteMetadata(tree, options));
  return std::optional(std::move(mended));
}

}  // namespace esker::erofs
