// Probes of what roots are made of. All mounts but the FUSE one, which is in a child's namespace,
// are detached: in no mount table, gone with their descriptors.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "probing.h"

namespace esker::features {
namespace {

constexpr int kPath = O_PATH | O_DIRECTORY | O_NOFOLLOW;

Status SetFd(int context, const char* key, int fd) {
  if (fsconfig(context, FSCONFIG_SET_FD, key, nullptr, fd) == 0) return OkStatus();
  return ErrnoError(std::string("give overlayfs its ") + key + " by descriptor");
}

Status IdMap(int mount, int user_ns, const char* what) {
  UniqueFd clone(open_tree(mount, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH));
  if (!clone.valid()) return ErrnoError(std::string("clone ") + what);
  mount_attr attr = {};
  attr.attr_set = MOUNT_ATTR_IDMAP;
  attr.userns_fd = static_cast<uint64_t>(user_ns);
  if (mount_setattr(clone.get(), "", AT_EMPTY_PATH, &attr, sizeof(attr)) == 0) return OkStatus();
  return ErrnoError(std::string("id-map ") + what);
}

// An overlay as a sandbox's root is one: layers, upper and work directory by descriptor.
Result<UniqueFd> MakeOverlay() {
  ESKER_ASSIGN_OR_RETURN(UniqueFd base, NewTmpfs());
  UniqueFd context(fsopen("overlay", FSOPEN_CLOEXEC));
  if (!context.valid()) return ErrnoError("open the file system overlay");
  static constexpr struct {
    const char *key, *name;
  } kParts[] = {
      {"lowerdir+", "lower1"}, {"lowerdir+", "lower2"}, {"upperdir", "upper"}, {"workdir", "work"}};
  for (const auto& [key, name] : kParts) {
    if (mkdirat(base.get(), name, 0755) != 0) return ErrnoError("make a directory in a tmpfs");
    ESKER_ASSIGN_OR_RETURN(UniqueFd part, OpenFileAt(base.get(), name, kPath));
    ESKER_RETURN_IF_ERROR(SetFd(context.get(), key, part.get()));
  }
  if (fsconfig(context.get(), FSCONFIG_SET_FLAG, "volatile", nullptr, 0) != 0 ||
      fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    return ErrnoError("make an overlay");
  }
  UniqueFd mount(fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NODEV));
  if (!mount.valid()) return ErrnoError("mount an overlay");
  return mount;
}

}  // namespace

Result<UniqueFd> NewTmpfs() {
  UniqueFd context(fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!context.valid()) return ErrnoError("fsopen a tmpfs");
  if (fsconfig(context.get(), FSCONFIG_SET_STRING, "mode", "0755", 0) != 0 ||
      fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    return ErrnoError("fsconfig a tmpfs");
  }
  UniqueFd mount(fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOATIME));
  if (!mount.valid()) return ErrnoError("fsmount a tmpfs");
  return mount;
}

Outcome ProbeMountApi(Probing&) {
  Result<UniqueFd> tmpfs = NewTmpfs();
  if (!tmpfs.ok()) return std::move(tmpfs).status();
  return "file systems are made by descriptor";
}

Outcome ProbeMountAttributes(Probing&) {
  Result<UniqueFd> tmpfs = NewTmpfs();
  if (!tmpfs.ok()) return std::move(tmpfs).status();
  mount_attr attr = {};
  attr.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID;
  if (mount_setattr(tmpfs->get(), "", AT_EMPTY_PATH, &attr, sizeof(attr)) != 0) {
    return ErrnoError("mount_setattr: make a mount read-only");
  }
  return "attributes of a mount are set by descriptor";
}

Outcome ProbeDetachedMounts(Probing&) {
  Result<UniqueFd> outer = NewTmpfs(), inner = NewTmpfs();
  if (!outer.ok() || !inner.ok()) return (outer.ok() ? inner : outer).status();
  UniqueFd clone(open_tree(inner->get(), "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH));
  if (!clone.valid()) return ErrnoError("open_tree: clone a detached mount");
  if (mkdirat(outer->get(), "at", 0755) != 0) return ErrnoError("make a directory in a tmpfs");
  if (move_mount(clone.get(), "", outer->get(), "at", MOVE_MOUNT_F_EMPTY_PATH) != 0) {
    return ErrnoError("move_mount: mount onto a detached mount");
  }
  return "detached mounts are cloned and mounted upon";
}

Outcome ProbeFileSystems(Probing& probing) {
  const Status& made = probing.Rehearsed()[Step::kFileSystems];
  if (!made.ok()) return made;
  return "proc, devpts, mqueue, tmpfs";
}

Outcome ProbeErofs(Probing& probing) {
  const Result<LayerMount>& layer = probing.Layer();
  if (!layer.ok()) return layer.status();
  if (layer->file_backed) return "EROFS mounts a file directly";
  return Outcome::FallsBack(
      "EROFS needs a loop device per layer (file-backed mounts came with Linux 6.12, and need a "
      "file that is not on overlayfs): slower mounts, more memory");
}

Outcome ProbeIdMap(Probing& probing) {
  const Result<UniqueFd>& user_ns = probing.UserNamespace();
  if (!user_ns.ok()) return user_ns.status();
  Result<UniqueFd> tmpfs = NewTmpfs();
  if (!tmpfs.ok()) return std::move(tmpfs).status();
  Status mapped = IdMap(tmpfs->get(), user_ns->get(), "a tmpfs");
  if (mapped.ok()) mapped = IdMap(probing.Layer()->mount.get(), user_ns->get(), "an EROFS layer");
  if (!mapped.ok()) return mapped;
  // Needed where uppers are plain directories; btrfs ones lie on a file system of their own.
  UniqueFd data(open_tree(AT_FDCWD, probing.options().directory.c_str(),
                          OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  if (!data.valid()) return ErrnoError("open_tree: clone a mount");
  mapped = IdMap(data.get(), user_ns->get(), "the data directory's file system");
  if (mapped.ok()) return "id-mapped mounts";
  UniqueFd btrfs(fsopen("btrfs", FSOPEN_CLOEXEC));
  if (!btrfs.valid()) return mapped;
  return Outcome::FallsBack(mapped.message() + ": uppers can be btrfs only");
}

Outcome ProbeFuse(Probing& probing) {
  const Status& mounted = probing.Rehearsed()[Step::kFuse];
  if (!mounted.ok()) return mounted;
  return "a FUSE file system can be mounted";
}

Outcome ProbeOverlay(Probing&) {
  Result<UniqueFd> overlay = MakeOverlay();
  if (!overlay.ok()) return std::move(overlay).status();
  if (mkdirat(overlay->get(), "proof", 0755) != 0) return ErrnoError("write to an overlay");
  return "overlayfs takes layers by descriptor";
}

Outcome ProbeBtrfs(Probing& probing) {
  UniqueFd context(fsopen("btrfs", FSOPEN_CLOEXEC));
  Status missing = !context.valid() ? ErrnoError("open the file system btrfs") : OkStatus();
  if (missing.ok()) {
    Result<UniqueFd> control = OpenFile("/dev/loop-control", O_RDWR);
    if (!control.ok()) missing = std::move(control).status();
  }
  if (missing.ok()) return "btrfs on a loop device";
  if (probing.options().needs_btrfs) return missing;
  return Outcome::FallsBack(missing.message() +
                            ": no hard disk limit (disk_mb answers UNIMPLEMENTED), snapshots copy");
}

}  // namespace esker::features
