// The inside of a Tree, shared by what builds it and what walks it. Everything here is iterative:
// a path may be far deeper than a stack.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "imagefs/erofs.h"
#include "markers.h"

namespace esker::erofs {

using InodeId = uint32_t;
using ChildMap = std::map<std::string, InodeId, std::less<>>;

struct Inode {
  Node node;
  uint32_t names = 0;
  // False for what only a whiteout brought about: the whiteout itself and directories made for it.
  // The layer has no entry of that name, so a later marker may still replace it.
  bool own = false;
  std::unique_ptr<ChildMap> children;  // directories only

  bool IsDirectory() const { return children != nullptr; }
};

struct Tree::Impl {
  static constexpr InodeId kRoot = 0;

  MarkerIndex markers;
  uint64_t markers_applied_again = 0;

  std::deque<Inode> inodes;  // ids are positions; pointers to nodes stay valid
  std::vector<InodeId> free_ids;

  Impl();
  size_t live() const { return inodes.size() - free_ids.size(); }
  const Inode& at(InodeId id) const { return inodes[id]; }
  Inode& at(InodeId id) { return inodes[id]; }

  InodeId Allocate(Node node, bool own);
  void AddName(InodeId directory, std::string_view name, InodeId child);
  // Removes one name; what is left without names goes away, with all below it.
  void RemoveName(InodeId directory, ChildMap::iterator name);
  void Release(InodeId id);
  // The inode at the path, or null.
  const Inode* Resolve(const PathParts& parts, InodeId* id = nullptr) const;

  // A directory and what the markers say of its path.
  struct Place {
    InodeId directory = kRoot;
    MarkerIndex::Id marker = MarkerIndex::kRoot;
  };
  // The parent directory of `parts`, made where missing; non-directories in the way are replaced.
  Result<Place> MakeParent(const PathParts& parts);
  // Puts a directory's node at the first `depth` parts; an existing directory keeps its children.
  Result<Place> PutDirectory(Place parent, const PathParts& parts, size_t depth, Node node,
                             bool replace_attributes);
  Status ApplyAgainBelow(MarkerIndex::Id marker, PathParts path);
  Status ApplyHidden(const PathParts& parts);
  Status ApplyOpaque(const PathParts& parts);
};

Node ImplicitDirectory();
// Parts are views into `path`. INVALID_ARGUMENT: a part over 255 bytes, or a NUL.
Result<PathParts> SplitPath(std::string_view path);

}  // namespace esker::erofs
