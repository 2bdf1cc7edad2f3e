#include "pool.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>

#include "base/id.h"
#include "base/io.h"
#include "base/log.h"
#include "base/process.h"
#include "base/scope_guard.h"
#include "loop_device.h"

namespace esker {
namespace {

constexpr uint64_t kMinPoolBytes = 256ull << 20;  // btrfs resizes to nothing smaller
constexpr auto kDetachDeadline = std::chrono::seconds(2);

// nobarrier: uppers are not promised across a power loss (a pool that saw one is made anew), and
// flushes would be paid by every neighbour. commit=10: the space of a deleted volume comes back
// with a commit. discard: deleted bytes leave the sparse file, but must stay in a preallocated one.
std::string MountOptions(const PoolShape& shape) {
  return std::string("nobarrier,commit=10,") + (shape.preallocate ? "nodiscard" : "discard=async");
}

constexpr unsigned long kMountFlags = MS_NOATIME | MS_NOSUID | MS_NODEV;

Result<bool> IsMountpoint(const std::string& path) {
  struct statx stx = {};
  if (statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_TYPE, &stx) != 0) {
    if (errno == ENOENT) return false;
    return ErrnoError("stat " + path);
  }
  return (stx.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

// A copy-on-write host would turn each write into two allocations; the file is ours alone.
void AvoidDoubleCopyOnWrite(int fd) {
  struct statfs fs = {};
  if (fstatfs(fd, &fs) != 0 || fs.f_type != BTRFS_SUPER_MAGIC) return;
  int flags = 0;
  if (ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0) return;
  flags |= FS_NOCOW_FL;
  (void)ioctl(fd, FS_IOC_SETFLAGS, &flags);  // only slower without
}

// Gives the file at least its size, and its blocks if they are to be taken now. A failure leaves it
// as it was.
Status SizeImage(int image, const PoolShape& shape) {
  struct stat st = {};
  if (fstat(image, &st) != 0) return ErrnoError("stat the pool file");
  off_t size = std::max(st.st_size, static_cast<off_t>(shape.bytes));
  if (!shape.preallocate) {
    if (size == st.st_size || ftruncate(image, size) == 0) return OkStatus();
    return ErrnoError("size the pool file");
  }
  if (fallocate(image, 0, 0, size) == 0) return OkStatus();
  Status status =
      ErrnoError("take " + std::to_string(size >> 20) + " MiB of the host's disk for the pool");
  (void)ftruncate(image, st.st_size);  // gives back what was taken; the first error is what counts
  return status;
}

// A new, formatted file; appears under its name only when complete.
Status MakeImage(const PoolPaths& paths, const PoolShape& shape) {
  if (shape.bytes < kMinPoolBytes) {
    return InvalidArgumentError("a pool of " + std::to_string(shape.bytes) +
                                " bytes is too small; give " + std::to_string(kMinPoolBytes) +
                                " or more");
  }
  std::string fresh = paths.image + ".new";
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(fresh, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW));
  ScopeGuard drop([&] { unlink(fresh.c_str()); });
  AvoidDoubleCopyOnWrite(fd.get());
  ESKER_RETURN_IF_ERROR(SizeImage(fd.get(), shape));
  ESKER_ASSIGN_OR_RETURN(CommandOutput mkfs,
                         RunCommand({"mkfs.btrfs", "--quiet", "--nodiscard", "--metadata", "single",
                                     "--data", "single", fresh}));
  if (mkfs.exit_code != 0) {
    return InternalError("mkfs.btrfs of " + fresh + " ended with " +
                         std::to_string(mkfs.exit_code) + ": " + mkfs.out);
  }
  if (fsync(fd.get()) != 0) return ErrnoError("fsync " + fresh);
  if (rename(fresh.c_str(), paths.image.c_str()) != 0) return ErrnoError("rename " + fresh);
  drop.Dismiss();
  return OkStatus();
}

// Opens the pool file, making it if there is none or if the machine went down with it mounted:
// without barriers such a file may be torn, and nothing in it was promised.
Result<UniqueFd> OpenImage(const PoolPaths& paths, const PoolShape& shape) {
  if (PathExists(paths.image) && PathExists(paths.marker)) {
    ESKER_ASSIGN_OR_RETURN(std::string boot, ReadFileToString(paths.marker, 4096));
    if (boot != BootId()) {
      LogWarning("upper_pool_discarded",
                 {{"file", paths.image}, {"reason", "the machine went down with it mounted"}});
      if (unlink(paths.image.c_str()) != 0) return ErrnoError("unlink " + paths.image);
    }
  }
  if (!PathExists(paths.image)) ESKER_RETURN_IF_ERROR(MakeImage(paths, shape));
  return OpenFile(paths.image, O_RDWR | O_NOFOLLOW);
}

Status CheckIsOurs(const PoolPaths& paths, int image, int root) {
  std::string refusal = "something else is mounted at " + paths.mountpoint + "; unmount it: ";
  struct statfs fs = {};
  if (fstatfs(root, &fs) != 0) return ErrnoError("statfs " + paths.mountpoint);
  if (fs.f_type != BTRFS_SUPER_MAGIC) return FailedPreconditionError(refusal + "not btrfs");
  ESKER_ASSIGN_OR_RETURN(std::string device, btrfs::DevicePath(root));
  ESKER_ASSIGN_OR_RETURN(std::optional<LoopDevice> loop, FindLoop(image));
  if (!loop || loop->path != device) {
    return FailedPreconditionError(refusal + device + " is not a loop device of " + paths.image);
  }
  return OkStatus();
}

Status MountImage(const PoolPaths& paths, int image, const std::string& options) {
  // Found when only the mount is gone, for example with the namespace that it was in, while a
  // sandbox still uses the file system: a second device for the same file would destroy it.
  ESKER_ASSIGN_OR_RETURN(std::optional<LoopDevice> loop, FindLoop(image));
  if (!loop) {
    ESKER_ASSIGN_OR_RETURN(loop, AttachLoop(image));
  }
  ESKER_RETURN_IF_ERROR(ReplaceFileDurably(paths.marker, BootId()));
  if (mount(loop->path.c_str(), paths.mountpoint.c_str(), "btrfs", kMountFlags, options.c_str()) !=
      0) {
    return ErrnoError("mount " + paths.image + " (" + loop->path + ") as btrfs at " +
                      paths.mountpoint);
  }
  // Shared, so that its unmounting also reaches the copies in mount namespaces that were cloned
  // from this one meanwhile and are its slaves (other keepers, service managers): they would keep
  // it busy.
  if (mount(nullptr, paths.mountpoint.c_str(), nullptr, MS_SHARED, nullptr) != 0) {
    Status status = ErrnoError("share " + paths.mountpoint);
    umount2(paths.mountpoint.c_str(), UMOUNT_NOFOLLOW);
    return status;
  }
  return OkStatus();
}

Status GrowFilesystem(int image, int root) {
  ESKER_ASSIGN_OR_RETURN(std::optional<LoopDevice> loop, FindLoop(image));
  if (!loop) return InternalError("the mounted pool has no loop device");
  ESKER_RETURN_IF_ERROR(RefreshLoopSize(loop->fd.get()));
  return btrfs::GrowToDevice(root);
}

}  // namespace

Status CheckPoolSupport() {
  if (geteuid() != 0) {
    return UnimplementedError("btrfs uppers need root (CAP_SYS_ADMIN), which this process is not");
  }
  if (!PathExists("/dev/loop-control")) {
    return UnimplementedError("btrfs uppers need loop devices (no /dev/loop-control)");
  }
  // Asking for the type loads its module where it is one.
  UniqueFd context(static_cast<int>(syscall(SYS_fsopen, "btrfs", FSOPEN_CLOEXEC)));
  if (!context.valid()) {
    return ErrnoError("btrfs uppers need btrfs in the kernel").WithCode(Code::kUnimplemented);
  }
  Result<CommandOutput> mkfs = RunCommand({"mkfs.btrfs", "--version"});
  if (!mkfs.ok()) {
    return mkfs.status()
        .Wrap("btrfs uppers need mkfs.btrfs (package btrfs-progs)")
        .WithCode(Code::kUnimplemented);
  }
  return OkStatus();
}

Status CheckPoolWritable(const PoolPaths& paths, int root) {
  struct statvfs fs = {};
  if (fstatvfs(root, &fs) != 0) return ErrnoError("statvfs " + paths.mountpoint);
  if (fs.f_flag & ST_RDONLY) {
    return Status::FromErrno(EROFS, paths.mountpoint +
                                        " is read-only since an I/O error (was the host's disk "
                                        "full?); end its sandboxes, close the store, open it again")
        .WithCode(Code::kDataLoss);
  }
  return OkStatus();
}

Result<MountedPool> OpenPool(const PoolPaths& paths, const PoolShape& shape) {
  ESKER_RETURN_IF_ERROR(MakeDirectories(paths.mountpoint));
  ESKER_ASSIGN_OR_RETURN(bool mounted, IsMountpoint(paths.mountpoint));
  if (mounted && !PathExists(paths.image)) {
    return FailedPreconditionError("something is mounted at " + paths.mountpoint + ", but " +
                                   paths.image + " is gone; unmount it");
  }
  ESKER_ASSIGN_OR_RETURN(UniqueFd image, OpenImage(paths, shape));
  ESKER_RETURN_IF_ERROR(SizeImage(image.get(), shape));
  std::string options = MountOptions(shape);
  if (!mounted) ESKER_RETURN_IF_ERROR(MountImage(paths, image.get(), options));
  // What this call mounted must not stay behind when it fails; declared before the pool's own
  // descriptor, so that it runs after that is closed.
  ScopeGuard unmount([&] {
    if (!mounted) umount2(paths.mountpoint.c_str(), UMOUNT_NOFOLLOW);
  });
  MountedPool pool;
  ESKER_ASSIGN_OR_RETURN(pool.root, OpenFile(paths.mountpoint, O_RDONLY | O_DIRECTORY));
  ESKER_RETURN_IF_ERROR(CheckIsOurs(paths, image.get(), pool.root.get()));
  ESKER_RETURN_IF_ERROR(CheckPoolWritable(paths, pool.root.get()));
  // An already mounted pool, or its other mounts, may have had another shape.
  if (mount(nullptr, paths.mountpoint.c_str(), nullptr, MS_REMOUNT | kMountFlags,
            options.c_str()) != 0) {
    return ErrnoError("set mount options " + options + " of " + paths.mountpoint);
  }
  ESKER_RETURN_IF_ERROR(GrowFilesystem(image.get(), pool.root.get()));
  ESKER_ASSIGN_OR_RETURN(pool.fs_uuid, btrfs::FilesystemUuid(pool.root.get()));
  ESKER_ASSIGN_OR_RETURN(pool.quotas, btrfs::GetQuotaMode(pool.fs_uuid));
  if (pool.quotas == btrfs::QuotaMode::kOff) {
    ESKER_RETURN_IF_ERROR(btrfs::EnableQuotas(pool.root.get()));
    ESKER_ASSIGN_OR_RETURN(pool.quotas, btrfs::GetQuotaMode(pool.fs_uuid));
  }
  unmount.Dismiss();
  return pool;
}

Status ClosePool(const PoolPaths& paths) {
  ESKER_ASSIGN_OR_RETURN(bool mounted, IsMountpoint(paths.mountpoint));
  if (!PathExists(paths.image)) {
    if (!mounted) return OkStatus();
    return FailedPreconditionError("something that is not the pool is mounted at " +
                                   paths.mountpoint + "; unmount it");
  }
  ESKER_ASSIGN_OR_RETURN(UniqueFd image, OpenFile(paths.image, O_RDWR | O_NOFOLLOW));
  if (mounted) {
    ESKER_ASSIGN_OR_RETURN(UniqueFd root, OpenFile(paths.mountpoint, O_RDONLY | O_DIRECTORY));
    ESKER_RETURN_IF_ERROR(CheckIsOurs(paths, image.get(), root.get()));
    root.reset();
    if (umount2(paths.mountpoint.c_str(), UMOUNT_NOFOLLOW) != 0) {
      return ErrnoError("unmount " + paths.mountpoint + " (does a process use it?)")
          .WithCode(Code::kFailedPrecondition);
    }
  }
  // The kernel detaches the device when the last mount of any namespace, detached ones included,
  // is gone; it may take a moment after umount.
  auto deadline = std::chrono::steady_clock::now() + kDetachDeadline;
  for (;;) {
    ESKER_ASSIGN_OR_RETURN(std::optional<LoopDevice> loop, FindLoop(image.get()));
    if (!loop) break;
    std::string device = loop->path;
    loop.reset();
    if (std::chrono::steady_clock::now() > deadline) {
      return FailedPreconditionError(
          "the pool is unmounted, but a sandbox or a descriptor still "
          "uses it through " +
          device + "; end it and close again");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (unlink(paths.marker.c_str()) != 0 && errno != ENOENT) {
    return ErrnoError("unlink " + paths.marker);
  }
  return OkStatus();
}

}  // namespace esker
