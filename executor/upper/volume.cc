#include "volume.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/io.h"

namespace esker {
namespace {

constexpr char kStagingPrefix[] = ".new-";
// Below this much free space, or 5 % of a small file system, nothing new is made.
constexpr uint64_t kHostReserve = 256ull << 20;

}  // namespace

std::string StagingName(std::string_view id) { return kStagingPrefix + std::string(id); }

bool IsStagingName(std::string_view name) { return name.starts_with(kStagingPrefix); }

Status MakeVolumeDirectories(int volume_fd) {
  for (const char* name : {"upper", "work"}) {
    if (mkdirat(volume_fd, name, 0755) != 0) {
      if (errno == EEXIST) continue;
      return ErrnoError(std::string("make ") + name + " in a volume");
    }
    // The umask of the caller must not decide what the sandbox sees as the mode of its root.
    if (fchmodat(volume_fd, name, 0755, 0) != 0) return ErrnoError(std::string("chmod ") + name);
  }
  return OkStatus();
}

Result<UniqueFd> OpenDetached(int parent_fd, std::string_view id) {
  std::string name(id);
  Result<UniqueFd> plain = OpenBeneath(parent_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW);
  if (!plain.ok()) {
    if (plain.status().code() == Code::kNotFound) {
      return NotFoundError("there is no upper volume " + name);
    }
    return plain.status().Wrap("open volume " + name);
  }
  int fd = static_cast<int>(syscall(SYS_open_tree, plain->get(), "",
                                    OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH));
  if (fd >= 0) return UniqueFd(fd);
  if (errno == EPERM) return plain;
  return ErrnoError("detach a mount of volume " + name);
}

Status Publish(int parent_fd, std::string_view id) {
  std::string name(id), staging = StagingName(id);
  if (renameat2(parent_fd, staging.c_str(), parent_fd, name.c_str(), RENAME_NOREPLACE) == 0) {
    return OkStatus();
  }
  if (errno == EEXIST) return AlreadyExistsError("there is an upper volume " + name + " already");
  return ErrnoError("publish volume " + name);
}

Result<UpperSpace> FilesystemSpace(int fd, const std::string& what) {
  struct statvfs fs = {};
  if (fstatvfs(fd, &fs) != 0) return ErrnoError("statvfs " + what);
  return UpperSpace{uint64_t{fs.f_blocks} * fs.f_frsize, uint64_t{fs.f_bavail} * fs.f_frsize};
}

Status CheckHostSpace(int directory_fd, const std::string& directory) {
  ESKER_ASSIGN_OR_RETURN(UpperSpace host, FilesystemSpace(directory_fd, directory));
  uint64_t reserve = std::min(kHostReserve, host.total / 20);
  if (host.available >= reserve) return OkStatus();
  return Status::FromErrno(ENOSPC, "the host file system below " + directory + " has " +
                                       std::to_string(host.available >> 20) +
                                       " MiB left, of which " + std::to_string(reserve >> 20) +
                                       " MiB are kept; free space or move the data directory");
}

}  // namespace esker
