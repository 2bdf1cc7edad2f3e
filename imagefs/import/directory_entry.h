// One name of a directory that others may change meanwhile, held by descriptor. Private to import.
#pragma once

#include <sys/stat.h>

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker::import_internal {

// An inode, pinned (O_PATH): its type cannot change any more, and nothing was opened that could
// block or act (fifos, devices).
class DirectoryEntry {
 public:
  // The name itself, links not followed. ABORTED if it is gone; FAILED_PRECONDITION if something
  // is mounted over it and it is not a directory.
  static Result<DirectoryEntry> Open(int dirfd, const std::string& name);
  // What a descriptor is.
  static Result<DirectoryEntry> Of(int fd);

  const struct stat& status() const { return status_; }
  // Something is mounted here: what lies inside belongs to another file system.
  bool is_mount_point() const { return is_mount_point_; }

  Result<UniqueFd> OpenDirectory() const;
  Result<UniqueFd> OpenFile() const;
  Result<std::string> ReadLink() const;
  // All extended attributes, links' own included.
  Result<std::map<std::string, std::string>> ReadXattrs() const;

 private:
  UniqueFd path_fd_;
  struct stat status_ = {};
  bool is_mount_point_ = false;
};

// Names in an open directory, sorted, without . and ..
Result<std::vector<std::string>> ListNames(int dirfd);

}  // namespace esker::import_internal
