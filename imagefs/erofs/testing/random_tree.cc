#include "testing/random_tree.h"

#include <fmt/format.h>

#include <map>
#include <random>
#include <vector>

#include "format.h"
#include "tree_impl.h"

namespace esker::erofs {
namespace {

class Generator {
 public:
  Generator(uint32_t seed, const RandomTreeOptions& options) : random_(seed), options_(options) {}

  Tree Run() {
    Tree tree;
    for (int i = 0; i < options_.operations; ++i) {
      const std::string path = Path();
      switch (Below(12)) {
        case 0:
          // Most targets are missing or directories: refused, which is no part of this.
          (void)tree.Link(path, paths_.empty() ? "none" : paths_[Below(paths_.size())]);
          break;
        case 1:
          Must(tree.Whiteout(path));
          break;
        case 2:
          Must(tree.Opaque(path));
          break;
        default:
          Must(tree.Put(path, RandomNode()));
          paths_.push_back(path);
      }
    }
    return tree;
  }

 private:
  static void Must(const Status& status) {
    if (!status.ok()) std::abort();
  }
  uint64_t Below(uint64_t bound) { return random_() % bound; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

  std::string Name() {
    if (OneIn(20)) return std::string(255, static_cast<char>('a' + Below(3)));
    if (OneIn(10)) {
      std::string name;
      for (uint64_t i = 0; i <= Below(12); ++i) {
        char c = static_cast<char>(1 + Below(255));
        name += c == '/' ? '-' : c;
      }
      return name == "." || name == ".." ? "dots" : name;
    }
    return std::string(1 + Below(2), static_cast<char>('a' + Below(6)));
  }

  std::string Path() {
    std::string path = Name();
    while (!OneIn(3)) path += "/" + Name();
    return path;
  }

  Node RandomNode() {
    Node node;
    node.type = static_cast<FileType>(OneIn(2) ? Below(2) : Below(7));
    node.mode = static_cast<uint16_t>(Below(010000));
    node.uid = OneIn(2) ? 0 : static_cast<uint32_t>(random_());
    node.gid = OneIn(2) ? 0 : static_cast<uint32_t>(Below(70000));
    if (!OneIn(3)) {
      node.mtime_seconds = options_.wide_times
                               ? static_cast<int64_t>(Below(1ull << 35)) - (1ll << 33)
                               : static_cast<int64_t>(Below(1ull << 31));
      node.mtime_nanos = static_cast<uint32_t>(Below(1'000'000'000));
    }
    if (node.type == FileType::kSymlink) {
      node.symlink_target = std::string(OneIn(4) ? 1 + Below(4095) : 1 + Below(60), 's');
    } else if (node.type == FileType::kCharDevice || node.type == FileType::kBlockDevice) {
      node.device_major = static_cast<uint32_t>(Below(4096));
      node.device_minor = static_cast<uint32_t>(Below(1 << 20));
    } else if (node.type == FileType::kRegular && !OneIn(4)) {
      AddContent(node);
    }
    for (uint64_t i = OneIn(4) ? Below(4) : 0; i > 0; --i) {
      static const char* const kNames[] = {"user.", "security.", "trusted."};
      node.xattrs[kNames[Below(3)] + std::string(1 + Below(30), 'n')] =
          std::string(OneIn(8) ? Below(6000) : Below(40), static_cast<char>(Below(256)));
    }
    return node;
  }

  void AddContent(Node& node) {
    node.size = OneIn(3) ? 1 + Below(kBlockSize * 40) : kBlockSize * (1 + Below(40));
    const uint64_t blocks = BlocksOf(node.size);
    for (uint64_t block = 0; block < blocks;) {
      const uint64_t run = OneIn(2) ? blocks - block : 1 + Below(blocks - block);
      if (!options_.holes || !OneIn(3)) {
        const uint64_t begin = block * kBlockSize;
        node.extents.push_back({begin, std::min(run * kBlockSize, node.size - begin),
                                Below(options_.device_blocks - run) * kBlockSize});
      }
      block += run;
    }
  }

  std::mt19937 random_;
  const RandomTreeOptions options_;
  std::vector<std::string> paths_;
};

std::string NodeDifference(const Node& a, const Node& b) {
  if (a.type != b.type) return "type";
  if (a.mode != b.mode) return "mode";
  if (a.uid != b.uid || a.gid != b.gid) return "owner";
  if (a.mtime_seconds != b.mtime_seconds || a.mtime_nanos != b.mtime_nanos) return "time";
  if (a.device_major != b.device_major || a.device_minor != b.device_minor) return "device";
  if (a.size != b.size) return "size";
  if (a.symlink_target != b.symlink_target) return "target";
  if (a.xattrs != b.xattrs) return "xattrs";
  if (a.extents.size() != b.extents.size()) return "number of extents";
  for (size_t i = 0; i < a.extents.size(); ++i) {
    if (a.extents[i].file_offset != b.extents[i].file_offset ||
        a.extents[i].length != b.extents[i].length ||
        a.extents[i].device_offset != b.extents[i].device_offset) {
      return fmt::format("extent {}", i);
    }
  }
  return "";
}

}  // namespace

Tree RandomTree(uint32_t seed, const RandomTreeOptions& options) {
  return Generator(seed, options).Run();
}

std::string FirstDifference(const Tree& a, const Tree& b) {
  struct Pair {
    InodeId in_a, in_b;
    std::string path;
  };
  std::map<InodeId, InodeId> same;  // inodes of a and what they must be in b
  std::vector<Pair> pending = {{Tree::Impl::kRoot, Tree::Impl::kRoot, "/"}};
  if (a.inode_count() != b.inode_count()) {
    return fmt::format("{} and {} inodes", a.inode_count(), b.inode_count());
  }
  while (!pending.empty()) {
    const Pair pair = pending.back();
    pending.pop_back();
    const Inode& left = a.impl().at(pair.in_a);
    const Inode& right = b.impl().at(pair.in_b);
    if (auto why = NodeDifference(left.node, right.node); !why.empty()) {
      return pair.path + ": " + why;
    }
    if (same.emplace(pair.in_a, pair.in_b).first->second != pair.in_b) {
      return pair.path + ": hard links";
    }
    if (!left.IsDirectory()) {
      if (left.names != right.names) return pair.path + ": link count";
      continue;
    }
    auto it = right.children->begin();
    for (const auto& [name, id] : *left.children) {
      if (it == right.children->end() || it->first != name) {
        return fmt::format("{}: \"{}\" is only in one", pair.path, name);
      }
      pending.push_back({id, it->second, pair.path + "/" + name});
      ++it;
    }
    if (it != right.children->end()) return pair.path + ": more names in the second";
  }
  return "";
}

}  // namespace esker::erofs
