// Comparing a tree with a directory of the host, entry by entry, for tests.
#pragma once

#include <string>
#include <string_view>

#include "imagefs/erofs.h"

namespace esker::erofs {

struct CompareOptions {
  bool xattrs = true;
  bool hard_links = true;  // link counts and equal inode numbers
  bool nanoseconds = true;
  bool symlink_modes = true;  // where the host file system keeps them
  bool set_id_bits = true;
  bool directory_links = true;  // link counts of directories
  bool holes = true;            // SEEK_DATA and SEEK_HOLE agree with the extents
};
// Empty when `dirfd` holds exactly the tree, with file content taken from `device`; else what
// differs first. Every name is also looked up by itself, besides being listed. Files up to 16 MiB
// are read in full, larger ones around each extent's borders.
std::string CompareDirectory(const Tree& tree, int dirfd, std::string_view device,
                             const CompareOptions& options);

}  // namespace esker::erofs
