#include "testing/compare.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/unique_fd.h"
#include "format.h"
#include "node_rules.h"
#include "tree_impl.h"

namespace esker::erofs {
namespace {

class Comparison {
 public:
  Comparison(const Tree& tree, std::string_view device, const CompareOptions& options)
      : tree_(tree.impl()), device_(device), options_(options) {}

  std::string Run(int dirfd) {
    auto root = std::make_shared<UniqueFd>(openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    std::string difference = CompareEntry(*root, "", Tree::Impl::kRoot);
    pending_.push_back({root, Tree::Impl::kRoot, ""});
    while (difference.empty() && !pending_.empty()) {
      const Pending next = pending_.back();
      pending_.pop_back();
      difference = CompareNames(next);
      if (!difference.empty()) {
        difference = fmt::format("{}/{}", next.path.substr(0, 200), difference);
      }
    }
    return difference;
  }

 private:
  struct Pending {
    std::shared_ptr<UniqueFd> directory;
    InodeId id;
    std::string path;
  };

  std::string CompareNames(const Pending& pending) {
    std::set<std::string> found;
    UniqueFd listing(openat(pending.directory->get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!listing.valid()) return fmt::format("open: {}", strerror(errno));
    std::unique_ptr<DIR, int (*)(DIR*)> stream(fdopendir(listing.release()), closedir);
    int dots = 0;
    while (const dirent* entry = readdir(stream.get())) {
      const std::string name = entry->d_name;
      if (name == "." || name == "..") {
        ++dots;
        continue;
      }
      if (!found.insert(name).second) return name + ": listed twice";
      auto it = tree_.at(pending.id).children->find(name);
      if (it == tree_.at(pending.id).children->end()) return name + ": not in the tree";
      if (entry->d_type != IFTODT(ModeFormat(tree_.at(it->second).node.type))) {
        return name + ": listed with another type";
      }
    }
    if (dots != 2) return "no . and ..";
    for (const auto& [name, id] : *tree_.at(pending.id).children) {
      if (!found.contains(name)) return name + ": not listed";
      std::string why = CompareEntry(*pending.directory, name, id);
      if (!why.empty()) return name + ": " + why;
      if (!tree_.at(id).IsDirectory()) continue;
      auto child = std::make_shared<UniqueFd>(openat(
          pending.directory->get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!child->valid()) return fmt::format("{}: open: {}", name, strerror(errno));
      pending_.push_back({child, id, pending.path + "/" + name});
    }
    return "";
  }

  std::string CompareEntry(const UniqueFd& directory, const std::string& name, InodeId id) {
    const Inode& inode = tree_.at(id);
    const Node& node = inode.node;
    struct stat st;
    if (fstatat(directory.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) != 0) {
      return fmt::format("stat: {}", strerror(errno));
    }
    std::string why = CompareStat(inode, st);
    if (why.empty() && options_.hard_links) {
      if (inodes_.emplace(id, st.st_ino).first->second != st.st_ino ||
          ids_.emplace(st.st_ino, id).first->second != id) {
        why = "inode numbers and hard links disagree";
      }
    }
    if (why.empty() && options_.xattrs) why = CompareXattrs(directory, name, node);
    if (why.empty() && node.type == FileType::kSymlink) {
      char target[8192];
      const ssize_t size = readlinkat(directory.get(), name.c_str(), target, sizeof(target));
      if (size < 0 || node.symlink_target != std::string_view(target, size)) why = "target";
    }
    if (why.empty() && node.type == FileType::kRegular) {
      why = CompareContent(directory, name, node);
    }
    return why;
  }

  std::string CompareStat(const Inode& inode, const struct stat& st) const {
    const Node& node = inode.node;
    const uint32_t mode = ModeFormat(node.type) | node.mode;
    const bool check_mode = node.type != FileType::kSymlink || options_.symlink_modes;
    const uint32_t ignored = options_.set_id_bits ? 0 : S_ISUID | S_ISGID;
    if (check_mode && ((st.st_mode ^ mode) & ~ignored) != 0) {
      return fmt::format("mode {:o}, not {:o}", st.st_mode, mode);
    }
    if (st.st_uid != node.uid || st.st_gid != node.gid) {
      return fmt::format("owner {}:{}", st.st_uid, st.st_gid);
    }
    if (st.st_mtim.tv_sec != node.mtime_seconds ||
        (options_.nanoseconds && st.st_mtim.tv_nsec != node.mtime_nanos)) {
      return fmt::format("time {}.{}, not {}.{}", st.st_mtim.tv_sec, st.st_mtim.tv_nsec,
                         node.mtime_seconds, node.mtime_nanos);
    }
    if (node.type == FileType::kRegular && static_cast<uint64_t>(st.st_size) != node.size) {
      return fmt::format("size {}, not {}", st.st_size, node.size);
    }
    if (IsDevice(node.type) && st.st_rdev != makedev(node.device_major, node.device_minor)) {
      return "device number";
    }
    if (inode.IsDirectory()) {
      uint64_t links = 2;
      for (const auto& [name, id] : *inode.children) links += tree_.at(id).IsDirectory();
      if (options_.directory_links && st.st_nlink != links) return "directory link count";
    } else if (options_.hard_links && st.st_nlink != inode.names) {
      return fmt::format("link count {}, not {}", st.st_nlink, inode.names);
    }
    return "";
  }

  // Linux lists but never reads user.* of anything but files and directories (xattr(7)).
  static bool IsHiddenUserXattr(const Node& node, std::string_view name) {
    return name.starts_with("user.") && node.xattrs.contains(std::string(name)) &&
           node.type != FileType::kRegular && node.type != FileType::kDirectory;
  }

  static std::string CompareXattrs(const UniqueFd& directory, const std::string& name,
                                   const Node& node) {
    // There is no lgetxattrat; the link of our own descriptor stands for the directory.
    const std::string path = fmt::format("/proc/self/fd/{}/{}", directory.get(), name);
    std::vector<char> names(1 << 16), value(1 << 16);
    const ssize_t size = llistxattr(path.c_str(), names.data(), names.size());
    if (size < 0) return fmt::format("listxattr: {}", strerror(errno));
    std::map<std::string, std::string> found;
    for (ssize_t at = 0; at < size; at += static_cast<ssize_t>(strlen(&names[at])) + 1) {
      const ssize_t got = lgetxattr(path.c_str(), &names[at], value.data(), value.size());
      if (got < 0 && errno == ENODATA && IsHiddenUserXattr(node, &names[at])) {
        found.emplace(&names[at], node.xattrs.at(&names[at]));
        continue;
      }
      if (got < 0) return fmt::format("getxattr {}: {}", &names[at], strerror(errno));
      if (!found.emplace(&names[at], std::string(value.data(), got)).second) {
        return "an attribute listed twice";
      }
    }
    return found == node.xattrs ? "" : "extended attributes";
  }

  // The file's bytes [offset, offset + size) as the tree says.
  std::string Expected(const Node& node, uint64_t offset, uint64_t size) const {
    std::string out(size, '\0');
    for (const Extent& extent : node.extents) {
      const uint64_t begin = std::max(offset, extent.file_offset);
      const uint64_t end = std::min(offset + size, extent.file_offset + extent.length);
      if (begin >= end) continue;
      const uint64_t at = extent.device_offset + (begin - extent.file_offset);
      const std::string_view from =
          device_.substr(std::min<uint64_t>(at, device_.size()), end - begin);
      out.replace(begin - offset, from.size(), from);
    }
    return out;
  }

  std::string CompareContent(const UniqueFd& directory, const std::string& name,
                             const Node& node) const {
    UniqueFd file(openat(directory.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!file.valid()) return fmt::format("open: {}", strerror(errno));
    constexpr uint64_t kPiece = 1 << 20;
    std::vector<uint64_t> offsets;
    if (node.size <= 16 * kPiece) {
      for (uint64_t at = 0; at < node.size; at += kPiece) offsets.push_back(at);
    } else {
      for (const Extent& extent : node.extents) {
        for (uint64_t border : {extent.file_offset, extent.file_offset + extent.length}) {
          offsets.push_back(border - std::min(border, kPiece / 2));
        }
      }
      offsets.push_back(node.size - kPiece);
    }
    std::string buffer(kPiece, '\0');
    for (uint64_t offset : offsets) {
      const uint64_t size = std::min(kPiece, node.size - offset);
      const ssize_t got = pread(file.get(), buffer.data(), kPiece, static_cast<off_t>(offset));
      if (got < 0) return fmt::format("read at {}: {}", offset, strerror(errno));
      if (static_cast<uint64_t>(got) != size) return fmt::format("{} bytes at {}", got, offset);
      if (std::string_view(buffer).substr(0, size) != Expected(node, offset, size)) {
        return fmt::format("content at {}", offset);
      }
    }
    return options_.holes ? CompareHoles(file, node) : "";
  }

  // What SEEK_DATA and SEEK_HOLE say must be the extents, no more and no less.
  static std::string CompareHoles(const UniqueFd& file, const Node& node) {
    std::vector<std::pair<off_t, off_t>> expected, found;
    for (const Extent& extent : node.extents) {
      const auto begin = static_cast<off_t>(extent.file_offset);
      const auto end = begin + static_cast<off_t>(extent.length);
      if (!expected.empty() && expected.back().second == begin) {
        expected.back().second = end;
      } else {
        expected.emplace_back(begin, end);
      }
    }
    const auto size = static_cast<off_t>(node.size);
    for (off_t at = 0; at < size && found.size() <= expected.size();) {
      const off_t begin = lseek(file.get(), at, SEEK_DATA);
      if (begin < 0 && errno == ENXIO) break;
      at = begin < 0 ? begin : lseek(file.get(), begin, SEEK_HOLE);
      if (at < 0) return fmt::format("lseek: {}", strerror(errno));
      found.emplace_back(begin, at);
    }
    // A kernel whose EROFS knows no holes calls the whole file data.
    const std::vector<std::pair<off_t, off_t>> all = {{0, size}};
    return found == expected || found == all || size == 0 ? "" : "holes";
  }

  const Tree::Impl& tree_;
  const std::string_view device_;
  const CompareOptions options_;
  std::vector<Pending> pending_;
  std::map<InodeId, ino_t> inodes_;
  std::map<ino_t, InodeId> ids_;
};

}  // namespace

std::string CompareDirectory(const Tree& tree, int dirfd, std::string_view device,
                             const CompareOptions& options) {
  return Comparison(tree, device, options).Run(dirfd);
}

}  // namespace esker::erofs
