#include "base/io.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/id.h"

namespace esker {
namespace {

Result<UniqueFd> OpenAt2(int dirfd, const std::string& path, int flags, mode_t mode,
                         uint64_t resolve) {
  open_how how = {};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
  how.mode = (flags & (O_CREAT | O_TMPFILE)) ? mode : 0;
  how.resolve = resolve | RESOLVE_NO_MAGICLINKS;
  for (;;) {
    int fd = static_cast<int>(syscall(SYS_openat2, dirfd, path.c_str(), &how, sizeof(how)));
    if (fd >= 0) return UniqueFd(fd);
    // EAGAIN: a concurrent rename made the walk unsafe to judge; it is transient by contract.
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EXDEV) {
      return Status::FromErrno(EXDEV, "open " + path + ": the path leads outside its root")
          .WithCode(Code::kPermissionDenied);
    }
    return ErrnoError("open " + path);
  }
}

}  // namespace

Result<UniqueFd> OpenFile(const std::string& path, int flags, mode_t mode) {
  return OpenFileAt(AT_FDCWD, path, flags, mode);
}

Result<UniqueFd> OpenFileAt(int dirfd, const std::string& path, int flags, mode_t mode) {
  for (;;) {
    int fd = ::openat(dirfd, path.c_str(), flags | O_CLOEXEC, mode);
    if (fd >= 0) return UniqueFd(fd);
    if (errno != EINTR) return ErrnoError("open " + path);
  }
}

Result<UniqueFd> OpenBeneath(int dirfd, const std::string& path, int flags, mode_t mode) {
  return OpenAt2(dirfd, path, flags, mode, RESOLVE_BENEATH);
}

Result<UniqueFd> OpenInRoot(int dirfd, const std::string& path, int flags, mode_t mode) {
  return OpenAt2(dirfd, path, flags, mode, RESOLVE_IN_ROOT);
}

Result<size_t> ReadFull(int fd, void* buffer, size_t size) {
  size_t done = 0;
  while (done < size) {
    ssize_t n = ::read(fd, static_cast<char*>(buffer) + done, size - done);
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError("read");
    }
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

Status PReadExact(int fd, void* buffer, size_t size, uint64_t offset, std::string_view what) {
  size_t done = 0;
  while (done < size) {
    ssize_t n = ::pread(fd, static_cast<char*>(buffer) + done, size - done,
                        static_cast<off_t>(offset + done));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError("read " + std::string(what));
    }
    if (n == 0) {
      return DataLossError("read " + std::string(what) + ": the file ends at " +
                           std::to_string(offset + done) + ", wanted " + std::to_string(size) +
                           " bytes at " + std::to_string(offset));
    }
    done += static_cast<size_t>(n);
  }
  return OkStatus();
}

Status WriteFull(int fd, const void* data, size_t size) {
  size_t done = 0;
  while (done < size) {
    ssize_t n = ::write(fd, static_cast<const char*>(data) + done, size - done);
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError("write");
    }
    done += static_cast<size_t>(n);
  }
  return OkStatus();
}

Status PWriteFull(int fd, const void* data, size_t size, uint64_t offset) {
  size_t done = 0;
  while (done < size) {
    ssize_t n = ::pwrite(fd, static_cast<const char*>(data) + done, size - done,
                         static_cast<off_t>(offset + done));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoError("write");
    }
    done += static_cast<size_t>(n);
  }
  return OkStatus();
}

Result<std::string> ReadFileToString(const std::string& path, size_t limit) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDONLY));
  std::string out;
  char buffer[16384];
  for (;;) {
    Result<size_t> n = ReadFull(fd.get(), buffer, sizeof(buffer));
    if (!n.ok()) return std::move(n).status().Wrap(path);
    out.append(buffer, *n);
    if (out.size() > limit) {
      return ResourceExhaustedError(path + " is larger than " + std::to_string(limit) + " bytes");
    }
    if (*n < sizeof(buffer)) return out;
  }
}

Status WriteStringToFile(const std::string& path, std::string_view data) {
  return WriteStringToFileAt(AT_FDCWD, path, data);
}

Status WriteStringToFileAt(int dirfd, const std::string& path, std::string_view data) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFileAt(dirfd, path, O_WRONLY));
  ssize_t n;
  do {
    n = ::write(fd.get(), data.data(), data.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0) return ErrnoError("write " + path);
  if (static_cast<size_t>(n) != data.size()) return InternalError("short write to " + path);
  return OkStatus();
}

Status ReplaceFileDurably(const std::string& path, std::string_view data, mode_t mode) {
  std::string temporary = path + ".tmp-" + RandomId();
  auto write_and_rename = [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(temporary, O_WRONLY | O_CREAT | O_EXCL, mode));
    ESKER_RETURN_IF_ERROR(WriteFull(fd.get(), data.data(), data.size()).Wrap(temporary));
    if (::fsync(fd.get()) != 0) return ErrnoError("fsync " + temporary);
    if (::rename(temporary.c_str(), path.c_str()) != 0) return ErrnoError("rename to " + path);
    size_t slash = path.rfind('/');
    return FsyncDirectory(slash == std::string::npos ? "." : path.substr(0, slash + 1));
  };
  Status status = write_and_rename();
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

Status FsyncDirectory(const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDONLY | O_DIRECTORY));
  if (::fsync(fd.get()) != 0) return ErrnoError("fsync directory " + path);
  return OkStatus();
}

Status MakeDirectories(const std::string& path, mode_t mode) {
  if (path.empty()) return InvalidArgumentError("empty directory path");
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    std::string prefix = path.substr(0, end);
    if (::mkdir(prefix.c_str(), mode) != 0 && errno != EEXIST) {
      return ErrnoError("make directory " + prefix);
    }
    if (end == std::string::npos) break;
  }
  struct stat st;
  if (::stat(path.c_str(), &st) != 0) return ErrnoError("stat " + path);
  if (!S_ISDIR(st.st_mode)) return Status::FromErrno(ENOTDIR, "make directory " + path);
  return OkStatus();
}

namespace {

Status RemoveEntriesOf(int dirfd, dev_t device, const std::string& path);

Status RemoveEntry(int dirfd, const char* name, dev_t device, const std::string& path) {
  if (::unlinkat(dirfd, name, 0) == 0 || errno == ENOENT) return OkStatus();
  if (errno != EISDIR && errno != EPERM) return ErrnoError("remove " + path);
  int raw = ::openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (raw < 0) return errno == ENOENT ? OkStatus() : ErrnoError("remove " + path);
  UniqueFd child(raw);
  struct stat st;
  if (::fstat(raw, &st) != 0) return ErrnoError("stat " + path);
  if (st.st_dev != device) {
    return FailedPreconditionError("remove " + path + ": it is on another file system (a mount?)");
  }
  ESKER_RETURN_IF_ERROR(RemoveEntriesOf(raw, device, path));
  if (::unlinkat(dirfd, name, AT_REMOVEDIR) != 0 && errno != ENOENT) {
    return ErrnoError("remove directory " + path);
  }
  return OkStatus();
}

Status RemoveEntriesOf(int dirfd, dev_t device, const std::string& path) {
  int copy = ::openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return ErrnoError("open " + path);
  DIR* dir = ::fdopendir(copy);
  if (dir == nullptr) {
    ::close(copy);
    return ErrnoError("list " + path);
  }
  std::vector<std::string> names;
  while (dirent* entry = ::readdir(dir)) {
    std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  ::closedir(dir);
  for (const std::string& name : names) {
    ESKER_RETURN_IF_ERROR(RemoveEntry(dirfd, name.c_str(), device, path + "/" + name));
  }
  return OkStatus();
}

}  // namespace

Status RemoveTree(const std::string& path) {
  struct stat st;
  if (::lstat(path.c_str(), &st) != 0) {
    return errno == ENOENT ? OkStatus() : ErrnoError("stat " + path);
  }
  return RemoveEntry(AT_FDCWD, path.c_str(), st.st_dev, path);
}

Result<std::vector<std::string>> ListDirectory(const std::string& path) {
  DIR* dir = ::opendir(path.c_str());
  if (dir == nullptr) return ErrnoError("list " + path);
  std::vector<std::string> names;
  while (dirent* entry = ::readdir(dir)) {
    std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

bool PathExists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

}  // namespace esker
