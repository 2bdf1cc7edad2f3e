#include "btrfs.h"

#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/io.h"

namespace esker::btrfs {
namespace {

// BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA of Linux 6.7; older headers do not have it.
constexpr uint64_t kEnableSimpleQuota = 4;
// In a limit: "take the limit away" (CLEAR_VALUE in the kernel's fs/btrfs/qgroup.c).
constexpr uint64_t kClearLimit = UINT64_MAX;

Status CopyName(const std::string& name, btrfs_ioctl_vol_args_v2* args) {
  if (name.empty() || name.size() > BTRFS_SUBVOL_NAME_MAX) {
    return InvalidArgumentError("subvolume name of " + std::to_string(name.size()) + " bytes");
  }
  memcpy(args->name, name.data(), name.size());
  return OkStatus();
}

std::string GroupDirectory(const std::string& fs_uuid) {
  return "/sys/fs/btrfs/" + fs_uuid + "/qgroups";
}

Result<uint64_t> ReadNumber(const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(std::string text, ReadFileToString(path, 4096));
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return InternalError(path + " holds no number: " + text);
  return value;
}

// Is there still a root item of this subvolume, that is, is it alive or being cleaned up?
Result<bool> SubvolumeExists(int fd, uint64_t id) {
  btrfs_ioctl_search_args search = {};
  search.key.tree_id = BTRFS_ROOT_TREE_OBJECTID;
  search.key.min_objectid = search.key.max_objectid = id;
  search.key.min_type = search.key.max_type = BTRFS_ROOT_ITEM_KEY;
  search.key.max_offset = search.key.max_transid = UINT64_MAX;
  search.key.nr_items = 1;
  if (ioctl(fd, BTRFS_IOC_TREE_SEARCH, &search) != 0) {
    return ErrnoError("look for subvolume " + std::to_string(id));
  }
  return search.key.nr_items > 0;
}

}  // namespace

Result<std::string> FilesystemUuid(int fd) {
  btrfs_ioctl_fs_info_args info = {};
  if (ioctl(fd, BTRFS_IOC_FS_INFO, &info) != 0) return ErrnoError("BTRFS_IOC_FS_INFO");
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (int i = 0; i < BTRFS_FSID_SIZE; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += kHex[info.fsid[i] >> 4];
    out += kHex[info.fsid[i] & 15];
  }
  return out;
}

Result<std::string> DevicePath(int fd) {
  btrfs_ioctl_dev_info_args info = {};
  info.devid = 1;
  if (ioctl(fd, BTRFS_IOC_DEV_INFO, &info) != 0) return ErrnoError("BTRFS_IOC_DEV_INFO");
  const char* path = reinterpret_cast<const char*>(info.path);
  return std::string(path, strnlen(path, sizeof(info.path)));
}

Result<QuotaMode> GetQuotaMode(const std::string& fs_uuid) {
  std::string directory = GroupDirectory(fs_uuid);
  if (!PathExists(directory)) return QuotaMode::kOff;
  ESKER_ASSIGN_OR_RETURN(uint64_t enabled, ReadNumber(directory + "/enabled"));
  if (enabled == 0) return QuotaMode::kOff;
  Result<std::string> mode = ReadFileToString(directory + "/mode", 4096);
  // Kernels without simple quotas have no such file.
  if (!mode.ok()) return QuotaMode::kClassic;
  return mode->starts_with("squota") ? QuotaMode::kSimple : QuotaMode::kClassic;
}

Status EnableQuotas(int fd) {
  btrfs_ioctl_quota_ctl_args args = {};
  args.cmd = kEnableSimpleQuota;
  if (ioctl(fd, BTRFS_IOC_QUOTA_CTL, &args) == 0) return OkStatus();
  if (errno != EINVAL && errno != EOPNOTSUPP) return ErrnoError("enable simple quotas");
  args = {};
  args.cmd = BTRFS_QUOTA_CTL_ENABLE;
  if (ioctl(fd, BTRFS_IOC_QUOTA_CTL, &args) != 0) return ErrnoError("enable classic quotas");
  if (ioctl(fd, BTRFS_IOC_QUOTA_RESCAN_WAIT) != 0) return ErrnoError("wait for the quota scan");
  return OkStatus();
}

Status CreateSubvolume(int dirfd, const std::string& name) {
  btrfs_ioctl_vol_args_v2 args = {};
  ESKER_RETURN_IF_ERROR(CopyName(name, &args));
  if (ioctl(dirfd, BTRFS_IOC_SUBVOL_CREATE_V2, &args) != 0) {
    return ErrnoError("create subvolume " + name);
  }
  return OkStatus();
}

Status SnapshotSubvolume(int source_fd, int dirfd, const std::string& name, bool read_only) {
  btrfs_ioctl_vol_args_v2 args = {};
  ESKER_RETURN_IF_ERROR(CopyName(name, &args));
  args.fd = source_fd;
  args.flags = read_only ? BTRFS_SUBVOL_RDONLY : 0;
  if (ioctl(dirfd, BTRFS_IOC_SNAP_CREATE_V2, &args) != 0) {
    return ErrnoError("clone a subvolume as " + name);
  }
  return OkStatus();
}

Status DestroySubvolume(int dirfd, const std::string& name) {
  btrfs_ioctl_vol_args_v2 args = {};
  ESKER_RETURN_IF_ERROR(CopyName(name, &args));
  if (ioctl(dirfd, BTRFS_IOC_SNAP_DESTROY_V2, &args) != 0) {
    return ErrnoError("destroy subvolume " + name);
  }
  return OkStatus();
}

Result<uint64_t> SubvolumeId(int fd) {
  btrfs_ioctl_ino_lookup_args args = {};
  args.objectid = BTRFS_FIRST_FREE_OBJECTID;
  if (ioctl(fd, BTRFS_IOC_INO_LOOKUP, &args) != 0) return ErrnoError("find a subvolume's id");
  return uint64_t{args.treeid};
}

Status SetLimit(int root_fd, int volume_fd, uint64_t bytes) {
  btrfs_ioctl_qgroup_limit_args args = {};
  ESKER_ASSIGN_OR_RETURN(args.qgroupid, SubvolumeId(volume_fd));
  args.lim.flags = BTRFS_QGROUP_LIMIT_MAX_RFER;
  args.lim.max_rfer = bytes == 0 ? kClearLimit : bytes;
  if (ioctl(root_fd, BTRFS_IOC_QGROUP_LIMIT, &args) != 0) {
    return ErrnoError("limit a subvolume to " + std::to_string(bytes) + " bytes");
  }
  return OkStatus();
}

Result<QuotaGroup> ReadQuotaGroup(const std::string& fs_uuid, uint64_t subvolume_id) {
  std::string directory = GroupDirectory(fs_uuid) + "/0_" + std::to_string(subvolume_id) + "/";
  QuotaGroup group;
  // Reservations of writes that have not reached an extent yet count against the limit as well.
  for (const char* part : {"referenced", "rsv_data", "rsv_meta_pertrans", "rsv_meta_prealloc"}) {
    ESKER_ASSIGN_OR_RETURN(uint64_t bytes, ReadNumber(directory + part));
    group.used += bytes;
  }
  ESKER_ASSIGN_OR_RETURN(uint64_t flags, ReadNumber(directory + "limit_flags"));
  if (flags & BTRFS_QGROUP_LIMIT_MAX_RFER) {
    ESKER_ASSIGN_OR_RETURN(group.limit, ReadNumber(directory + "max_referenced"));
  }
  return group;
}

Result<int> ReapQuotaGroups(int fd, const std::string& fs_uuid) {
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(GroupDirectory(fs_uuid)));
  int reaped = 0;
  for (const std::string& name : names) {
    uint64_t id = 0;
    if (!name.starts_with("0_")) continue;
    auto [end, error] = std::from_chars(name.data() + 2, name.data() + name.size(), id);
    if (error != std::errc() || id < BTRFS_FIRST_FREE_OBJECTID) continue;
    // Both checks are ours: before Linux 6.11 the kernel drops the group of a living subvolume,
    // and with it its limit, without a word.
    ESKER_ASSIGN_OR_RETURN(bool exists, SubvolumeExists(fd, id));
    if (exists) continue;
    Result<QuotaGroup> group = ReadQuotaGroup(fs_uuid, id);
    if (!group.ok() || group->used != 0) continue;
    btrfs_ioctl_qgroup_create_args args = {};
    args.create = 0;
    args.qgroupid = id;
    if (ioctl(fd, BTRFS_IOC_QGROUP_CREATE, &args) == 0) {
      ++reaped;
    } else if (errno != EBUSY && errno != ENOENT) {
      return ErrnoError("remove quota group " + name);
    }
  }
  return reaped;
}

Status GrowToDevice(int fd) {
  btrfs_ioctl_vol_args args = {};
  memcpy(args.name, "1:max", 5);
  if (ioctl(fd, BTRFS_IOC_RESIZE, &args) != 0) return ErrnoError("grow the pool");
  return OkStatus();
}

}  // namespace esker::btrfs
