#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <unordered_map>

#include "base/io.h"
#include "directory_entry.h"
#include "imagefs/import.h"
#include "layer_builder.h"
#include "xattr_policy.h"

namespace esker {
namespace {

using import_internal::ContentWriter;
using import_internal::DirectoryEntry;
using import_internal::LayerBuilder;
using import_internal::XattrVerdict;

// Descriptors are few: below this depth a directory is closed and found again on the way back.
constexpr size_t kMaxOpenDirectories = 128;
constexpr size_t kMaxPathBytes = 1u << 20;

std::optional<erofs::FileType> TypeOf(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return erofs::FileType::kRegular;
    case S_IFDIR:
      return erofs::FileType::kDirectory;
    case S_IFLNK:
      return erofs::FileType::kSymlink;
    case S_IFCHR:
      return erofs::FileType::kCharDevice;
    case S_IFBLK:
      return erofs::FileType::kBlockDevice;
    case S_IFIFO:
      return erofs::FileType::kFifo;
    case S_IFSOCK:
      return erofs::FileType::kSocket;
    default:
      return std::nullopt;
  }
}

bool SameVersion(const struct stat& a, const struct stat& b) {
  return a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec && a.st_ctim.tv_sec == b.st_ctim.tv_sec &&
         a.st_ctim.tv_nsec == b.st_ctim.tv_nsec;
}

// Copies [from, to) of the file.
Status CopyRange(int fd, uint64_t from, uint64_t to, ContentWriter& content) {
  while (from < to) {
    std::span<uint8_t> space = content.Space();
    size_t want = std::min<uint64_t>(space.size(), to - from);
    ssize_t n = ::pread(fd, space.data(), want, static_cast<off_t>(from));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError("read");
    }
    if (n == 0) return AbortedError("it became shorter while it was read");
    ESKER_RETURN_IF_ERROR(content.Advance(static_cast<size_t>(n)));
    from += static_cast<uint64_t>(n);
  }
  return OkStatus();
}

// Where the file's next data begins at or after `at`, and where it ends; size, size if there is
// none. A file system without holes has one run of data.
Result<std::pair<uint64_t, uint64_t>> NextData(int fd, uint64_t at, uint64_t size) {
  off_t data = ::lseek(fd, static_cast<off_t>(at), SEEK_DATA);
  if (data < 0) {
    if (errno == ENXIO) return std::pair(size, size);
    if (errno == EINVAL) return std::pair(at, size);
    return ErrnoError("look for data");
  }
  off_t hole = ::lseek(fd, data, SEEK_HOLE);
  if (hole < 0) return ErrnoError("look for a hole");
  return std::pair(std::min<uint64_t>(static_cast<uint64_t>(data), size),
                   std::min<uint64_t>(static_cast<uint64_t>(hole), size));
}

Status CopyFile(int fd, uint64_t size, ContentWriter& content) {
  for (uint64_t position = 0; position < size;) {
    ESKER_ASSIGN_OR_RETURN(auto run, NextData(fd, position, size));
    const auto [begin, end] = run;
    ESKER_RETURN_IF_ERROR(content.Skip(begin - position));
    ESKER_RETURN_IF_ERROR(CopyRange(fd, begin, end, content));
    position = end;
  }
  return OkStatus();
}

struct InodeKey {
  dev_t device;
  ino_t inode;
  bool operator==(const InodeKey&) const = default;
  struct Hash {
    size_t operator()(const InodeKey& key) const {
      return std::hash<uint64_t>()(key.inode * 0x9e3779b97f4a7c15u ^ key.device);
    }
  };
};

class DirectoryWalk {
 public:
  DirectoryWalk(DirectoryKind kind, LayerBuilder& builder) : kind_(kind), builder_(builder) {}

  Status Run(int dirfd) {
    ESKER_ASSIGN_OR_RETURN(DirectoryEntry root, DirectoryEntry::Of(dirfd));
    if (!S_ISDIR(root.status().st_mode)) return InvalidArgumentError("not a directory");
    ESKER_RETURN_IF_ERROR(AddNode("", root));
    ESKER_RETURN_IF_ERROR(Enter("", "", root));
    while (!open_.empty()) {
      Frame& frame = open_.back();
      if (frame.next == frame.names.size()) {
        open_.pop_back();
        continue;
      }
      const std::string name = std::move(frame.names[frame.next++]);
      ESKER_RETURN_IF_ERROR(Reopen());
      const std::string path = open_.back().path + name;
      Status status = Visit(path, name);
      if (!status.ok()) return std::move(status).Wrap("\"" + path + "\"");
    }
    return OkStatus();
  }

 private:
  struct Frame {
    std::string name;  // in its parent
    std::string path;  // "" or ends with /
    UniqueFd fd;       // empty: closed to save descriptors
    dev_t device = 0;
    ino_t inode = 0;
    std::vector<std::string> names;
    size_t next = 0;
  };

  Status Visit(const std::string& path, const std::string& name) {
    ESKER_RETURN_IF_ERROR(builder_.Tick());
    ++builder_.progress().entries;
    ESKER_ASSIGN_OR_RETURN(DirectoryEntry entry, DirectoryEntry::Open(open_.back().fd.get(), name));
    ESKER_RETURN_IF_ERROR(AddNode(path, entry));
    if (!S_ISDIR(entry.status().st_mode) || entry.is_mount_point()) return OkStatus();
    return Enter(path + "/", name, entry);
  }

  Status Enter(std::string path, const std::string& name, const DirectoryEntry& entry) {
    if (path.size() > kMaxPathBytes) {
      return ResourceExhaustedError("directories are nested too deeply");
    }
    Frame frame;
    frame.name = name;
    frame.path = std::move(path);
    ESKER_ASSIGN_OR_RETURN(frame.fd, entry.OpenDirectory());
    frame.device = entry.status().st_dev;
    frame.inode = entry.status().st_ino;
    ESKER_ASSIGN_OR_RETURN(frame.names, import_internal::ListNames(frame.fd.get()));
    open_.push_back(std::move(frame));
    // The root stays open always: everything is found again from there.
    if (open_.size() > kMaxOpenDirectories + 1) {
      open_[open_.size() - kMaxOpenDirectories - 1].fd.reset();
    }
    return OkStatus();
  }

  // Makes sure that the innermost directory is open, after coming back up to one that was closed.
  Status Reopen() {
    if (open_.back().fd.valid()) return OkStatus();
    UniqueFd current;
    for (size_t i = 1; i < open_.size(); ++i) {
      Frame& frame = open_[i];
      int parent = current.valid() ? current.get() : open_[0].fd.get();
      ESKER_ASSIGN_OR_RETURN(DirectoryEntry entry, DirectoryEntry::Open(parent, frame.name));
      if (entry.status().st_dev != frame.device || entry.status().st_ino != frame.inode) {
        return AbortedError("\"" + frame.path + "\" was replaced while it was read");
      }
      ESKER_ASSIGN_OR_RETURN(UniqueFd fd, entry.OpenDirectory());
      // Keep the last ones, so that the next steps up need not come back here.
      if (open_.size() - i <= kMaxOpenDirectories) {
        frame.fd.reset(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
        if (!frame.fd.valid()) return ErrnoError("duplicate a descriptor");
      }
      current = std::move(fd);
    }
    return OkStatus();
  }

  Status AddNode(const std::string& path, const DirectoryEntry& entry) {
    const struct stat& status = entry.status();
    std::optional<erofs::FileType> type = TypeOf(status.st_mode);
    if (!type) return InvalidArgumentError("a kind of file that is not known");
    if (*type == erofs::FileType::kCharDevice && status.st_rdev == 0) return AddWhiteout(path);
    const bool may_have_links = *type != erofs::FileType::kDirectory && status.st_nlink > 1;
    const InodeKey key = {status.st_dev, status.st_ino};
    if (may_have_links) {
      auto seen = first_names_.find(key);
      if (seen != first_names_.end()) return builder_.tree().Link(path, seen->second);
    }
    erofs::Node node = Attributes(*type, status);
    bool opaque = false;
    bool whiteout = false;
    ESKER_RETURN_IF_ERROR(FillXattrs(entry, node, &opaque, &whiteout));
    if (whiteout) return builder_.tree().Whiteout(path);
    if (*type == erofs::FileType::kSymlink) {
      ESKER_ASSIGN_OR_RETURN(node.symlink_target, entry.ReadLink());
    }
    if (*type == erofs::FileType::kRegular) ESKER_RETURN_IF_ERROR(ReadContent(entry, node));
    ESKER_RETURN_IF_ERROR(builder_.tree().Put(path, std::move(node)));
    if (may_have_links) first_names_.emplace(key, path);
    return opaque ? builder_.tree().Opaque(path) : OkStatus();
  }

  Status AddWhiteout(const std::string& path) {
    if (kind_ == DirectoryKind::kOverlayUpper) return builder_.tree().Whiteout(path);
    return InvalidArgumentError(
        "a character device 0:0, which a layer cannot hold: overlayfs takes it for a whiteout");
  }

  static erofs::Node Attributes(erofs::FileType type, const struct stat& status) {
    erofs::Node node;
    node.type = type;
    node.mode = static_cast<uint16_t>(status.st_mode & 07777);
    node.uid = status.st_uid;
    node.gid = status.st_gid;
    node.mtime_seconds = status.st_mtim.tv_sec;
    node.mtime_nanos = static_cast<uint32_t>(status.st_mtim.tv_nsec);
    if (type == erofs::FileType::kCharDevice || type == erofs::FileType::kBlockDevice) {
      node.device_major = major(status.st_rdev);
      node.device_minor = minor(status.st_rdev);
    }
    if (type == erofs::FileType::kRegular) node.size = static_cast<uint64_t>(status.st_size);
    return node;
  }

  Status FillXattrs(const DirectoryEntry& entry, erofs::Node& node, bool* opaque, bool* whiteout) {
    ESKER_ASSIGN_OR_RETURN(auto xattrs, entry.ReadXattrs());
    const bool upper = kind_ == DirectoryKind::kOverlayUpper;
    for (auto& [name, value] : xattrs) {
      if (upper && name == "trusted.overlay.opaque" && value == "y") *opaque = true;
      if (upper && name == "trusted.overlay.whiteout") *whiteout = true;
      XattrVerdict verdict =
          upper ? import_internal::JudgeUpperXattr(name) : import_internal::JudgePlainXattr(name);
      if (verdict == XattrVerdict::kRefuse) {
        return FailedPreconditionError("the attribute " + name +
                                       " says that its content lies elsewhere");
      }
      if (verdict == XattrVerdict::kKeep) node.xattrs.emplace(name, std::move(value));
    }
    return OkStatus();
  }

  Status ReadContent(const DirectoryEntry& entry, erofs::Node& node) {
    if (node.size == 0) return OkStatus();
    ESKER_ASSIGN_OR_RETURN(UniqueFd fd, entry.OpenFile());
    ContentWriter& content = builder_.content();
    content.Begin(node.size);
    ESKER_RETURN_IF_ERROR(CopyFile(fd.get(), node.size, content));
    ESKER_ASSIGN_OR_RETURN(node.extents, content.End());
    builder_.progress().bytes_read += node.size;
    struct stat after;
    if (::fstat(fd.get(), &after) != 0) return ErrnoError("stat");
    if (!SameVersion(entry.status(), after)) {
      return AbortedError("it changed while it was read; freeze its writers first");
    }
    return OkStatus();
  }

  const DirectoryKind kind_;
  LayerBuilder& builder_;
  std::vector<Frame> open_;  // from the root to where we are
  std::unordered_map<InodeKey, std::string, InodeKey::Hash> first_names_;
};

}  // namespace

Result<ImportedLayer> ImportDirectory(
    int dirfd, DirectoryKind kind, Store& store, ChunkLookup& lookup, const ImportOptions& options,
    const std::function<std::optional<std::string>(const ImageLayer&)>& extra_manifest) {
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<LayerBuilder> builder,
                         LayerBuilder::Create(store, lookup, options));
  ESKER_RETURN_IF_ERROR(DirectoryWalk(kind, *builder).Run(dirfd).Wrap("import the directory"));
  return builder->Finish(ImageLayer(), extra_manifest);
}

}  // namespace esker
