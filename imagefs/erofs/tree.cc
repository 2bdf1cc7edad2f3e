#include <fmt/format.h>

#include "format.h"
#include "node_rules.h"
#include "tree_impl.h"
#include "xattr.h"

namespace esker::erofs {
namespace {

// Replaying markers is work that grows with markers x replaced directories; no real layer comes
// near this.
constexpr uint64_t kMaxMarkersAppliedAgain = 5'000'000;  // in path components

Node WhiteoutNode() {
  Node node;
  node.type = FileType::kCharDevice;
  node.mode = 0;
  return node;
}

void MarkOpaque(Node& node) { node.xattrs[std::string(kOpaqueName)] = kOpaqueValue; }

// A directory whose lower namesake is hidden by a whiteout is a new one: it has nothing to take
// attributes from.
void ApplyMarker(uint8_t marker_bits, Node& node) {
  if (marker_bits != 0) MarkOpaque(node);
  if ((marker_bits & kMarkedHidden) != 0) node.xattrs.erase(std::string(kImplicitName));
}

}  // namespace

Node ImplicitDirectory() {
  Node node;
  node.type = FileType::kDirectory;
  node.mode = 0755;
  node.xattrs.emplace(kImplicitName, kImplicitValue);
  return node;
}

Result<PathParts> SplitPath(std::string_view path) {
  if (path.find('\0') != std::string_view::npos) {
    return InvalidArgumentError(fmt::format("path of {} bytes: has a NUL byte", path.size()));
  }
  PathParts parts;
  while (!path.empty()) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
    if (part.size() > kMaxNameBytes) {
      return InvalidArgumentError(
          fmt::format("path component \"{}...\" of {} bytes is longer than 255 bytes",
                      part.substr(0, 32), part.size()));
    }
    if (part.empty() || part == ".") continue;
    if (part != "..") {
      parts.push_back(part);
    } else if (!parts.empty()) {
      parts.pop_back();
    }
  }
  return parts;
}

Tree::Impl::Impl() {
  Allocate(ImplicitDirectory(), /*own=*/true);
  at(kRoot).names = 1;
}

InodeId Tree::Impl::Allocate(Node node, bool own) {
  InodeId id;
  if (free_ids.empty()) {
    id = static_cast<InodeId>(inodes.size());
    inodes.emplace_back();
  } else {
    id = free_ids.back();
    free_ids.pop_back();
  }
  Inode& inode = inodes[id];
  inode.own = own;
  if (node.type == FileType::kDirectory) inode.children = std::make_unique<ChildMap>();
  inode.node = std::move(node);
  return id;
}

void Tree::Impl::AddName(InodeId directory, std::string_view name, InodeId child) {
  at(directory).children->emplace_hint(at(directory).children->lower_bound(name), name, child);
  ++at(child).names;
}

void Tree::Impl::RemoveName(InodeId directory, ChildMap::iterator name) {
  const InodeId id = name->second;
  at(directory).children->erase(name);
  Release(id);
}

void Tree::Impl::Release(InodeId id) {
  std::vector<InodeId> dropped = {id};
  while (!dropped.empty()) {
    const InodeId next = dropped.back();
    dropped.pop_back();
    Inode& inode = at(next);
    if (--inode.names > 0) continue;
    if (inode.IsDirectory()) {
      for (const auto& [name, child] : *inode.children) dropped.push_back(child);
    }
    inode = Inode();
    free_ids.push_back(next);
  }
}

const Inode* Tree::Impl::Resolve(const PathParts& parts, InodeId* id) const {
  InodeId at_id = kRoot;
  for (std::string_view part : parts) {
    const Inode& inode = at(at_id);
    if (!inode.IsDirectory()) return nullptr;
    auto it = inode.children->find(part);
    if (it == inode.children->end()) return nullptr;
    at_id = it->second;
  }
  if (id != nullptr) *id = at_id;
  return &at(at_id);
}

Result<Tree::Impl::Place> Tree::Impl::PutDirectory(Place parent, const PathParts& parts,
                                                   size_t depth, Node node,
                                                   bool replace_attributes) {
  const std::string_view name = parts[depth - 1];
  const MarkerIndex::Id marker = markers.Child(parent.marker, name);
  const uint8_t marked = markers.At(marker);
  ChildMap& siblings = *at(parent.directory).children;
  auto it = siblings.find(name);
  const bool there = it != siblings.end();
  if (there && at(it->second).IsDirectory()) {
    Inode& inode = at(it->second);
    inode.own = true;
    if (replace_attributes) inode.node = std::move(node);
    ApplyMarker(marked, inode.node);
    return Place{it->second, marker};
  }
  if (there) RemoveName(parent.directory, it);
  ApplyMarker(marked, node);
  const Place made{Allocate(std::move(node), /*own=*/true), marker};
  AddName(parent.directory, name, made.directory);
  if (there && marker != MarkerIndex::kNone) {
    ESKER_RETURN_IF_ERROR(ApplyAgainBelow(marker, PathParts(parts.begin(), parts.begin() + depth)));
  }
  return made;
}

Result<Tree::Impl::Place> Tree::Impl::MakeParent(const PathParts& parts) {
  Place place;
  for (size_t depth = 1; depth < parts.size(); ++depth) {
    const ChildMap& children = *at(place.directory).children;
    auto it = children.find(parts[depth - 1]);
    if (it != children.end() && at(it->second).IsDirectory() && at(it->second).own) {
      place = {it->second, markers.Child(place.marker, parts[depth - 1])};
      continue;
    }
    ESKER_ASSIGN_OR_RETURN(place, PutDirectory(place, parts, depth, ImplicitDirectory(),
                                               /*replace_attributes=*/false));
  }
  return place;
}

Status Tree::Impl::ApplyAgainBelow(MarkerIndex::Id marker, PathParts path) {
  // Opaque directories first: the directory is new and empty, so that nothing is replaced (which
  // would come back here) and whiteouts find every directory that the markers make.
  for (const MarkerBits kind : {kMarkedOpaque, kMarkedHidden}) {
    ESKER_RETURN_IF_ERROR(
        markers.ForEachBelow(marker, path, [&](const PathParts& parts, uint8_t bits) {
          markers_applied_again += (bits & kind) != 0 ? parts.size() : 1;
          if (markers_applied_again > kMaxMarkersAppliedAgain) {
            return ResourceExhaustedError(fmt::format(
                "{}: entries replace each other too often above too many whiteouts", path.back()));
          }
          if ((bits & kind) == 0) return OkStatus();
          return kind == kMarkedOpaque ? ApplyOpaque(parts) : ApplyHidden(parts);
        }));
  }
  return OkStatus();
}

Status Tree::Impl::ApplyHidden(const PathParts& parts) {
  InodeId directory = kRoot;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    ChildMap& children = *at(directory).children;
    auto it = children.find(parts[i]);
    if (it == children.end()) {
      const InodeId made = Allocate(ImplicitDirectory(), /*own=*/false);
      AddName(directory, parts[i], made);
      directory = made;
    } else if (at(it->second).IsDirectory()) {
      directory = it->second;
    } else {
      return OkStatus();  // a non-directory already hides everything below it
    }
  }
  ChildMap& children = *at(directory).children;
  auto it = children.find(parts.back());
  if (it != children.end()) {
    Inode& there = at(it->second);
    if (there.own && there.IsDirectory()) ApplyMarker(kMarkedHidden, there.node);
    if (there.own || !there.IsDirectory()) return OkStatus();
    RemoveName(directory, it);
  }
  AddName(directory, parts.back(), Allocate(WhiteoutNode(), /*own=*/false));
  return OkStatus();
}

Status Tree::Impl::ApplyOpaque(const PathParts& parts) {
  InodeId directory = kRoot;
  for (std::string_view part : parts) {
    auto it = at(directory).children->find(part);
    if (it == at(directory).children->end()) break;
    const Inode& inode = at(it->second);
    if (!inode.IsDirectory()) {
      if (inode.own) return OkStatus();  // the layer's own entry stays; remembered for later
      break;
    }
    directory = it->second;
  }
  if (parts.empty()) {
    MarkOpaque(at(kRoot).node);
    return OkStatus();
  }
  ESKER_ASSIGN_OR_RETURN(const Place parent, MakeParent(parts));
  return PutDirectory(parent, parts, parts.size(), ImplicitDirectory(),
                      /*replace_attributes=*/false)
      .status();
}

Tree::Tree() : impl_(std::make_unique<Impl>()) {}
Tree::~Tree() = default;
Tree::Tree(Tree&&) noexcept = default;
Tree& Tree::operator=(Tree&&) noexcept = default;

Status Tree::Put(std::string_view path, Node node) {
  ESKER_ASSIGN_OR_RETURN(PathParts parts, SplitPath(path));
  if (Status status = CheckAndNormalise(node); !status.ok()) return std::move(status).Wrap(path);
  const bool is_directory = node.type == FileType::kDirectory;
  if (parts.empty()) {
    if (!is_directory) return InvalidArgumentError("the root can only be a directory");
    impl_->at(Impl::kRoot).node = std::move(node);
    if (impl_->markers.At(MarkerIndex::kRoot) != 0) MarkOpaque(impl_->at(Impl::kRoot).node);
    return OkStatus();
  }
  ESKER_ASSIGN_OR_RETURN(const Impl::Place parent, impl_->MakeParent(parts));
  if (is_directory) {
    return impl_
        ->PutDirectory(parent, parts, parts.size(), std::move(node), /*replace_attributes=*/true)
        .status();
  }
  ChildMap& siblings = *impl_->at(parent.directory).children;
  if (auto it = siblings.find(parts.back()); it != siblings.end()) {
    impl_->RemoveName(parent.directory, it);
  }
  impl_->AddName(parent.directory, parts.back(), impl_->Allocate(std::move(node), /*own=*/true));
  return OkStatus();
}

Status Tree::Link(std::string_view path, std::string_view target) {
  ESKER_ASSIGN_OR_RETURN(PathParts target_parts, SplitPath(target));
  ESKER_ASSIGN_OR_RETURN(PathParts parts, SplitPath(path));
  InodeId id = 0;
  const Inode* inode = impl_->Resolve(target_parts, &id);
  if (inode == nullptr || !inode->own) {
    return NotFoundError(
        fmt::format("hard link {}: its target {} is not in this layer", path, target));
  }
  if (inode->IsDirectory() || parts.empty()) {
    return InvalidArgumentError(
        fmt::format("hard link {}: {} is a directory", path, parts.empty() ? path : target));
  }
  if (parts == target_parts) return OkStatus();
  // Held while the way is cleared, which may take the target's own name away.
  ++impl_->at(id).names;
  auto parent = impl_->MakeParent(parts);
  if (parent.ok()) {
    ChildMap& siblings = *impl_->at(parent->directory).children;
    if (auto it = siblings.find(parts.back()); it != siblings.end()) {
      impl_->RemoveName(parent->directory, it);
    }
    impl_->AddName(parent->directory, parts.back(), id);
  }
  impl_->Release(id);
  return parent.status();
}

Status Tree::Whiteout(std::string_view path) {
  ESKER_ASSIGN_OR_RETURN(PathParts parts, SplitPath(path));
  if (parts.empty()) return InvalidArgumentError("a whiteout of the root");
  impl_->markers.Add(parts, kMarkedHidden);
  return impl_->ApplyHidden(parts);
}

Status Tree::Opaque(std::string_view path) {
  ESKER_ASSIGN_OR_RETURN(PathParts parts, SplitPath(path));
  impl_->markers.Add(parts, kMarkedOpaque);
  return impl_->ApplyOpaque(parts);
}

const Node* Tree::Find(std::string_view path) const {
  auto parts = SplitPath(path);
  if (!parts.ok()) return nullptr;
  const Inode* inode = impl_->Resolve(*parts);
  return inode == nullptr ? nullptr : &inode->node;
}

std::vector<std::pair<std::string, const Node*>> Tree::Children(std::string_view path) const {
  std::vector<std::pair<std::string, const Node*>> out;
  auto parts = SplitPath(path);
  const Inode* inode = parts.ok() ? impl_->Resolve(*parts) : nullptr;
  if (inode == nullptr || !inode->IsDirectory()) return out;
  out.reserve(inode->children->size());
  for (const auto& [name, id] : *inode->children) out.emplace_back(name, &impl_->at(id).node);
  return out;
}

uint32_t Tree::LinkCount(std::string_view path) const {
  auto parts = SplitPath(path);
  const Inode* inode = parts.ok() ? impl_->Resolve(*parts) : nullptr;
  if (inode == nullptr) return 0;
  if (!inode->IsDirectory()) return inode->names;
  uint32_t links = 2;
  for (const auto& [name, id] : *inode->children) links += impl_->at(id).IsDirectory();
  return links;
}

size_t Tree::inode_count() const { return impl_->live(); }

}  // namespace esker::erofs
