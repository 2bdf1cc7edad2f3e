#include "copy_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/io.h"

namespace esker {
namespace {

constexpr int kMaxDepth = 512;

using DirStream = std::unique_ptr<DIR, decltype([](DIR* d) { ::closedir(d); })>;

// The path that names an open descriptor's inode for calls that have no *at form.
std::string ProcPath(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

class Copier {
 public:
  explicit Copier(int to_root) : to_root_(to_root) {}

  // `path` is that of the directory below the root, "" for the root itself; for links and messages.
  Status CopyDirectory(int from, int to, const std::string& path, int depth);

 private:
  Status CopyEntry(int from, int to, const std::string& name, const std::string& path, int depth);
  Status CopySubdirectory(int from, int to, const std::string& name, const std::string& path,
                          int depth);
  Status CopyRegular(int from, int to, const std::string& name, const struct stat& st,
                     const std::string& path);
  Status MakeSpecial(int from, int to, const std::string& name, const struct stat& st,
                     const std::string& path);

  const int to_root_;
  // Where the first name of an inode with several went.
  std::map<std::pair<dev_t, ino_t>, std::string> links_;
};

// Through /proc, and without following: `fd` is O_PATH for what is neither file nor directory.
Status CopyXattrs(int from, int to, const std::string& path) {
  std::string source = ProcPath(from), target = ProcPath(to);
  ssize_t size = listxattr(source.c_str(), nullptr, 0);
  if (size <= 0)
    return size == 0 || errno == EOPNOTSUPP ? OkStatus() : ErrnoError("xattrs of " + path);
  std::vector<char> names(static_cast<size_t>(size));
  size = listxattr(source.c_str(), names.data(), names.size());
  if (size < 0) return ErrnoError("xattrs of " + path);
  std::vector<char> value(XATTR_SIZE_MAX);
  for (const char* name = names.data(); name < names.data() + size;
       name += std::string_view(name).size() + 1) {
    ssize_t length = getxattr(source.c_str(), name, value.data(), value.size());
    if (length < 0) return ErrnoError("read xattr " + std::string(name) + " of " + path);
    if (setxattr(target.c_str(), name, value.data(), static_cast<size_t>(length), 0) != 0) {
      return ErrnoError("write xattr " + std::string(name) + " of " + path);
    }
  }
  return OkStatus();
}

// Owner before mode and capabilities, since chown clears set-id bits and file capabilities; times
// last, since all else moves them.
Status CopyAttributes(int from, int to, const struct stat& st, const std::string& path) {
  if (fchownat(to, "", st.st_uid, st.st_gid, AT_EMPTY_PATH) != 0)
    return ErrnoError("chown " + path);
  if (chmod(ProcPath(to).c_str(), st.st_mode & 07777) != 0) return ErrnoError("chmod " + path);
  ESKER_RETURN_IF_ERROR(CopyXattrs(from, to, path));
  timespec times[2] = {st.st_atim, st.st_mtim};
  if (utimensat(AT_FDCWD, ProcPath(to).c_str(), times, 0) != 0) return ErrnoError("times " + path);
  return OkStatus();
}

Status CopyRange(int from, int to, off_t begin, off_t end, const std::string& path) {
  while (begin < end) {
    off_t in = begin, out = begin;
    ssize_t n = copy_file_range(from, &in, to, &out, static_cast<size_t>(end - begin), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError("copy " + path);
    if (n == 0) return AbortedError("copy " + path + ": it shrank meanwhile");
    begin += n;
  }
  return OkStatus();
}

Status CopyData(int from, int to, off_t size, const std::string& path) {
  if (size == 0 || ioctl(to, FICLONE, from) == 0) return OkStatus();
  if (ftruncate(to, size) != 0) return ErrnoError("size " + path);
  for (off_t at = 0; at < size;) {
    off_t data = lseek(from, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;  // only a hole is left
    if (data < 0) return ErrnoError("find data of " + path);
    off_t hole = lseek(from, data, SEEK_HOLE);
    if (hole < 0) return ErrnoError("find a hole of " + path);
    ESKER_RETURN_IF_ERROR(CopyRange(from, to, data, std::min(hole, size), path));
    at = hole;
  }
  return OkStatus();
}

Status Copier::CopyRegular(int from, int to, const std::string& name, const struct stat& st,
                           const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd in, OpenFileAt(from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  ESKER_ASSIGN_OR_RETURN(UniqueFd out,
                         OpenFileAt(to, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
  ESKER_RETURN_IF_ERROR(CopyData(in.get(), out.get(), st.st_size, path));
  return CopyAttributes(in.get(), out.get(), st, path);
}

Status Copier::MakeSpecial(int from, int to, const std::string& name, const struct stat& st,
                           const std::string& path) {
  if (S_ISLNK(st.st_mode)) {
    std::string target(PATH_MAX, '\0');
    ssize_t n = readlinkat(from, name.c_str(), target.data(), target.size());
    if (n < 0) return ErrnoError("read link " + path);
    target.resize(static_cast<size_t>(n));
    if (symlinkat(target.c_str(), to, name.c_str()) != 0) return ErrnoError("make link " + path);
    if (fchownat(to, name.c_str(), st.st_uid, st.st_gid, AT_SYMLINK_NOFOLLOW) != 0) {
      return ErrnoError("chown " + path);
    }
    timespec times[2] = {st.st_atim, st.st_mtim};
    if (utimensat(to, name.c_str(), times, AT_SYMLINK_NOFOLLOW) != 0) {
      return ErrnoError("times " + path);
    }
    return OkStatus();
  }
  if (mknodat(to, name.c_str(), st.st_mode, st.st_rdev) != 0) return ErrnoError("make " + path);
  ESKER_ASSIGN_OR_RETURN(UniqueFd in, OpenFileAt(from, name, O_PATH | O_NOFOLLOW));
  ESKER_ASSIGN_OR_RETURN(UniqueFd out, OpenFileAt(to, name, O_PATH | O_NOFOLLOW));
  return CopyAttributes(in.get(), out.get(), st, path);
}

Status Copier::CopySubdirectory(int from, int to, const std::string& name, const std::string& path,
                                int depth) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd in, OpenFileAt(from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  if (mkdirat(to, name.c_str(), 0700) != 0) return ErrnoError("make " + path);
  ESKER_ASSIGN_OR_RETURN(UniqueFd out, OpenFileAt(to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  return CopyDirectory(in.get(), out.get(), path, depth + 1);
}

Status Copier::CopyEntry(int from, int to, const std::string& name, const std::string& path,
                         int depth) {
  struct stat st = {};
  if (fstatat(from, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return ErrnoError("stat " + path);
  if (S_ISDIR(st.st_mode)) return CopySubdirectory(from, to, name, path, depth);
  if (st.st_nlink > 1) {
    auto [first, is_first] = links_.try_emplace({st.st_dev, st.st_ino}, path);
    if (!is_first) {
      if (linkat(to_root_, first->second.c_str(), to, name.c_str(), 0) == 0) return OkStatus();
      return ErrnoError("link " + path + " to " + first->second);
    }
  }
  if (S_ISREG(st.st_mode)) return CopyRegular(from, to, name, st, path);
  return MakeSpecial(from, to, name, st, path);
}

Status Copier::CopyDirectory(int from, int to, const std::string& path, int depth) {
  if (depth > kMaxDepth) {
    return ResourceExhaustedError("copy " + path.substr(0, 256) + "...: nested more than " +
                                  std::to_string(kMaxDepth) + " directories deep");
  }
  struct stat st = {};
  if (fstat(from, &st) != 0) return ErrnoError("stat " + path);
  ESKER_ASSIGN_OR_RETURN(UniqueFd listing, OpenFileAt(from, ".", O_RDONLY | O_DIRECTORY));
  DirStream stream(fdopendir(listing.get()));
  if (!stream) return ErrnoError("list " + path);
  listing.release();
  for (;;) {
    errno = 0;
    dirent* entry = readdir(stream.get());
    if (entry == nullptr) {
      if (errno != 0) return ErrnoError("list " + path);
      break;
    }
    std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    ESKER_RETURN_IF_ERROR(
        CopyEntry(from, to, name, path.empty() ? name : path + "/" + name, depth));
  }
  return CopyAttributes(from, to, st, path.empty() ? "." : path);
}

}  // namespace

Status CopyTree(int from, int to) { return Copier(to).CopyDirectory(from, to, "", 0); }

}  // namespace esker
