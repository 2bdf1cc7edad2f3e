// The pool: one btrfs file system in one sparse file, mounted inside the store's directory.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "btrfs.h"

namespace esker {

struct PoolPaths {
  explicit PoolPaths(const std::string& directory)
      : image(directory + "/pool.img"),
        mountpoint(directory + "/pool"),
        marker(directory + "/pool.boot") {}
  std::string image;       // the sparse file
  std::string mountpoint;  // where it is mounted
  std::string marker;      // boot id of the kernel that has it mounted; gone after a clean end
};

struct PoolShape {
  uint64_t bytes = 0;
  bool preallocate = false;  // see UpperStoreOptions
};

struct MountedPool {
  UniqueFd root;  // O_RDONLY | O_DIRECTORY
  std::string fs_uuid;
  btrfs::QuotaMode quotas = btrfs::QuotaMode::kOff;
};

// OK, or UNIMPLEMENTED that names what btrfs on a loop file would need here.
Status CheckPoolSupport();
// Makes, finds, grows and mounts it; see UpperStore::Open.
Result<MountedPool> OpenPool(const PoolPaths& paths, const PoolShape& shape);
// DATA_LOSS (EROFS) when the kernel made the pool read-only after an I/O error.
Status CheckPoolWritable(const PoolPaths& paths, int root);
// Unmounts it and waits until its loop device is gone; FAILED_PRECONDITION when something keeps it.
// OK when it was not mounted.
Status ClosePool(const PoolPaths& paths);

}  // namespace esker
