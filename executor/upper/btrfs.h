// The btrfs calls that the upper store makes, as ioctls (linux/btrfs.h); nothing here runs a tool.
// All descriptors are real ones of directories inside the file system (O_PATH does not do).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace esker::btrfs {

enum class QuotaMode {
  kOff,
  kClassic,  // what a subvolume references, shared or not; accounting costs at each commit
  kSimple,   // what a subvolume wrote; constant cost (Linux 6.7)
};

// Lower-case hexadecimal with dashes, as /sys/fs/btrfs names it.
Result<std::string> FilesystemUuid(int fd);
// Path of the only device ("/dev/loop3").
Result<std::string> DevicePath(int fd);

Result<QuotaMode> GetQuotaMode(const std::string& fs_uuid);
// Simple quotas, or classic ones where the kernel has no others.
Status EnableQuotas(int fd);

Status CreateSubvolume(int dirfd, const std::string& name);
// An atomic clone of the subvolume `source_fd` as `name` in `dirfd`; its dirty data is flushed
// first.
Status SnapshotSubvolume(int source_fd, int dirfd, const std::string& name, bool read_only);
// NOT_FOUND if there is none. Space comes back in the background.
Status DestroySubvolume(int dirfd, const std::string& name);
Result<uint64_t> SubvolumeId(int fd);

// Limits the subvolume of `volume_fd`; 0 lifts the limit. `root_fd` lies in a subvolume without a
// limit: the call takes space where it is made, and a full volume must still get a new limit.
Status SetLimit(int root_fd, int volume_fd, uint64_t bytes);

struct QuotaGroup {
  uint64_t used = 0;   // referenced and reserved bytes, live
  uint64_t limit = 0;  // 0: none
};
Result<QuotaGroup> ReadQuotaGroup(const std::string& fs_uuid, uint64_t subvolume_id);
// Forgets the quota groups of subvolumes that are gone and charged with nothing (the kernel keeps
// some of them for ever). Returns how many.
Result<int> ReapQuotaGroups(int fd, const std::string& fs_uuid);

// Grows the file system to the size of its device.
Status GrowToDevice(int fd);

}  // namespace esker::btrfs
