#include "link_publish.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/failpoint.h"
#include "base/id.h"
#include "base/io.h"
#include "base/scope_guard.h"

namespace esker::store_internal {
namespace {

Result<UniqueFd> OpenKindAt(int root, const std::string& path, int flags, mode_t kind) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd,
                         OpenBeneath(root, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | flags));
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) return ErrnoError("stat " + path);
  if ((status.st_mode & S_IFMT) != kind) {
    return DataLossError(path + " in the store is neither a file nor a directory of ours");
  }
  return fd;
}

// A network file system may do the link, lose the answer and report an error for the second try;
// the link count tells.
bool WasLinked(int root, const std::string& temporary) {
  struct stat status;
  return ::fstatat(root, temporary.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
         status.st_nlink >= 2;
}

}  // namespace

Result<UniqueFd> OpenDirectoryAt(int root, const std::string& path) {
  return OpenKindAt(root, path, O_DIRECTORY, S_IFDIR);
}

Result<UniqueFd> OpenRegularAt(int root, const std::string& path) {
  return OpenKindAt(root, path, 0, S_IFREG);
}

Status FsyncDirectoryAt(int root, const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenDirectoryAt(root, path));
  if (::fsync(fd.get()) != 0) return ErrnoError("fsync " + path);
  return OkStatus();
}

Status MakeDirectoryAt(int root, const std::string& path) {
  if (::mkdirat(root, path.c_str(), 0700) == 0 || errno == EEXIST) return OkStatus();
  return ErrnoError("mkdir " + path);
}

Result<std::vector<std::string>> ListAt(int root, const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenDirectoryAt(root, path));
  DIR* directory = ::fdopendir(fd.get());
  if (directory == nullptr) return ErrnoError("list " + path);
  fd.release();
  ScopeGuard close([&] { ::closedir(directory); });
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(directory);
    if (entry == nullptr) break;
    std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return ErrnoError("list " + path);
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::string> ReadSmallFileAt(int root, const std::string& path, size_t limit) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenRegularAt(root, path));
  std::string content;
  char buffer[16384];
  for (;;) {
    Result<size_t> n = ReadFull(fd.get(), buffer, sizeof(buffer));
    if (!n.ok()) return std::move(n).status().Wrap(path);
    content.append(buffer, *n);
    if (content.size() > limit) {
      return DataLossError(path + " is larger than " + std::to_string(limit) + " bytes");
    }
    if (*n < sizeof(buffer)) return content;
  }
}

Result<LinkOutcome> LinkDurably(int root, const std::string& temporary,
                                const std::string& directory, const std::string& name,
                                std::string_view point, bool* made_directory) {
  const std::string prefix(point);
  const std::string path = directory + "/" + name;
  LinkOutcome outcome = LinkOutcome::kPublished;
  *made_directory = false;
  ESKER_RETURN_IF_ERROR(HitFailPoint(prefix + ".before_link"));
  // The directory may be missing, or be removed by garbage collection between mkdir and link.
  constexpr int kAttempts = 8;
  for (int attempt = 1;; ++attempt) {
    if (::linkat(root, temporary.c_str(), root, path.c_str(), 0) == 0) break;
    int error = errno;
    if (WasLinked(root, temporary)) break;
    if (error == EEXIST) {
      outcome = LinkOutcome::kExists;
      break;
    }
    if (error != ENOENT || attempt == kAttempts) {
      return Status::FromErrno(error, "link " + temporary + " to " + path);
    }
    ESKER_RETURN_IF_ERROR(MakeDirectoryAt(root, directory));
    *made_directory = true;
  }
  ESKER_RETURN_IF_ERROR(HitFailPoint(prefix + ".after_link"));
  ESKER_RETURN_IF_ERROR(FsyncDirectoryAt(root, directory));
  ESKER_RETURN_IF_ERROR(HitFailPoint(prefix + ".after_dir_fsync"));
  return outcome;
}

Result<std::string> WriteTemporary(int root, std::string_view content) {
  std::string path = "tmp/" + RandomId();
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFileAt(root, path, O_WRONLY | O_CREAT | O_EXCL, 0600));
  ScopeGuard remove([&] { ::unlinkat(root, path.c_str(), 0); });
  ESKER_RETURN_IF_ERROR(WriteFull(fd.get(), content.data(), content.size()).Wrap(path));
  if (::fsync(fd.get()) != 0) return ErrnoError("fsync " + path);
  // Some network file systems report a failed write only here.
  if (::close(fd.release()) != 0) return ErrnoError("close " + path);
  remove.Dismiss();
  return path;
}

}  // namespace esker::store_internal
