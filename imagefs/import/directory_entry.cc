#include "directory_entry.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/io.h"
#include "base/scope_guard.h"

namespace esker::import_internal {
namespace {

constexpr size_t kMaxXattrBytes = 64u << 10;  // XATTR_SIZE_MAX and XATTR_LIST_MAX

Result<UniqueFd> OpenPath(int dirfd, const std::string& name, uint64_t resolve) {
  // With these flags a link is opened itself; only links on the way are refused.
  open_how how = {};
  how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | resolve;
  for (;;) {
    int fd = static_cast<int>(::syscall(SYS_openat2, dirfd, name.c_str(), &how, sizeof(how)));
    if (fd >= 0) return UniqueFd(fd);
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == ENOENT) {
      return AbortedError("\"" + name + "\" went away while its directory was read");
    }
    return ErrnoError("open \"" + name + "\"");
  }
}

std::string ProcPath(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

}  // namespace

Result<DirectoryEntry> DirectoryEntry::Open(int dirfd, const std::string& name) {
  DirectoryEntry entry;
  Result<UniqueFd> fd = OpenPath(dirfd, name, RESOLVE_NO_XDEV);
  if (!fd.ok() && fd.status().error_number() == EXDEV) {
    entry.is_mount_point_ = true;
    fd = OpenPath(dirfd, name, 0);
  }
  if (!fd.ok()) return std::move(fd).status();
  entry.path_fd_ = std::move(*fd);
  if (::fstat(entry.path_fd_.get(), &entry.status_) != 0) {
    return ErrnoError("stat \"" + name + "\"");
  }
  if (entry.is_mount_point_ && !S_ISDIR(entry.status_.st_mode)) {
    return FailedPreconditionError("\"" + name + "\" has something mounted over it");
  }
  return entry;
}

Result<DirectoryEntry> DirectoryEntry::Of(int fd) {
  DirectoryEntry entry;
  entry.path_fd_.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!entry.path_fd_.valid()) return ErrnoError("duplicate a descriptor");
  if (::fstat(fd, &entry.status_) != 0) return ErrnoError("stat a descriptor");
  return entry;
}

Result<UniqueFd> DirectoryEntry::OpenDirectory() const {
  return OpenFileAt(path_fd_.get(), ".", O_RDONLY | O_DIRECTORY);
}

Result<UniqueFd> DirectoryEntry::OpenFile() const {
  // O_NOATIME needs the owner or a capability; without it the access time moves, which is harmless.
  const std::string path = ProcPath(path_fd_.get());
  Result<UniqueFd> fd = esker::OpenFile(path, O_RDONLY | O_NOATIME);
  if (fd.ok() || fd.status().error_number() != EPERM) return fd;
  return esker::OpenFile(path, O_RDONLY);
}

Result<std::string> DirectoryEntry::ReadLink() const {
  std::string target(4096, '\0');
  ssize_t n = ::readlinkat(path_fd_.get(), "", target.data(), target.size());
  if (n < 0) return ErrnoError("read a symbolic link");
  target.resize(static_cast<size_t>(n));
  return target;
}

Result<std::map<std::string, std::string>> DirectoryEntry::ReadXattrs() const {
  // Calls by descriptor do not take O_PATH; the magic link leads to exactly this inode.
  const std::string path = ProcPath(path_fd_.get());
  std::map<std::string, std::string> xattrs;
  char small[1024];
  std::string large;
  char* names = small;
  ssize_t size = ::listxattr(path.c_str(), small, sizeof(small));
  if (size < 0 && errno == ERANGE) {
    large.resize(kMaxXattrBytes);
    names = large.data();
    size = ::listxattr(path.c_str(), names, large.size());
  }
  if (size < 0) {
    if (errno == EOPNOTSUPP) return xattrs;
    return ErrnoError("list extended attributes");
  }
  std::string value;
  for (std::string_view rest(names, static_cast<size_t>(size)); !rest.empty();) {
    std::string name(rest.substr(0, rest.find('\0')));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    value.resize(kMaxXattrBytes);
    ssize_t n = ::getxattr(path.c_str(), name.c_str(), value.data(), value.size());
    if (n < 0) {
      if (errno == ENODATA) continue;  // removed in between
      return ErrnoError("read the extended attribute " + name);
    }
    xattrs.emplace(std::move(name), value.substr(0, static_cast<size_t>(n)));
  }
  return xattrs;
}

Result<std::vector<std::string>> ListNames(int dirfd) {
  UniqueFd copy(::openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!copy.valid()) return ErrnoError("open a directory to list it");
  DIR* directory = ::fdopendir(copy.get());
  if (directory == nullptr) return ErrnoError("list a directory");
  copy.release();
  ScopeGuard close([&] { ::closedir(directory); });
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(directory);
    if (entry == nullptr) break;
    std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return ErrnoError("list a directory");
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace esker::import_internal
