// Volumes as btrfs subvolumes in the root of the pool, each with a quota group of its own.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "base/failpoint.h"
#include "base/id.h"
#include "base/io.h"
#include "base/scope_guard.h"
#include "btrfs.h"
#include "stores.h"
#include "volume.h"

namespace esker {
namespace {

// Quota groups that the kernel forgot to drop cost memory and commit time; look this often.
constexpr uint64_t kDeletesPerReap = 256;

class BtrfsStore final : public UpperStore {
 public:
  BtrfsStore(StoreHome home, MountedPool pool, bool preallocated)
      : home_(std::move(home)),
        paths_(home_.path),
        preallocated_(preallocated),
        pool_(std::move(pool)) {}

  Result<UniqueFd> Create(std::string_view id, uint64_t limit_bytes, bool adopt) override;
  Result<UniqueFd> OpenVolume(std::string_view id) override;
  std::string PathOf(std::string_view id) const override {
    return paths_.mountpoint + "/" + std::string(id);
  }
  Result<UniqueFd> Snapshot(std::string_view id, std::string_view clone_id) override;
  Result<UniqueFd> Clone(std::string_view from, std::string_view to, uint64_t limit_bytes) override;
  Status SetLimit(std::string_view id, uint64_t limit_bytes) override;
  Result<UpperUsage> GetUsage(std::string_view id) override;
  Result<UpperSpace> Space() override;
  Status Delete(std::string_view id) override;
  Result<std::vector<std::string>> List() override;
  Status Close() override;
  bool enforces_limit() const override { return true; }
  std::string kind() const override {
    return quotas_ == btrfs::QuotaMode::kSimple ? "btrfs (simple quotas)"
                                                : "btrfs (classic quotas)";
  }

  // Removes what a predecessor left half made.
  Status Recover();

 private:
  using SharedLock = std::shared_lock<std::shared_mutex>;

  // Holds off Close while the operation runs; FAILED_PRECONDITION after it.
  Result<SharedLock> Enter();
  // The same, for what writes; and for what will need space.
  Result<SharedLock> EnterToChange();
  Result<SharedLock> EnterToAdd();
  Result<UniqueFd> OpenForIoctl(std::string_view id);
  Result<UniqueFd> Adopt(std::string_view id, uint64_t limit_bytes);
  // Limits the staged volume of `id`, publishes it and opens it.
  Result<UniqueFd> FinishStaged(std::string_view id, int volume_fd, uint64_t limit_bytes);
  void DropStaged(std::string_view id) {
    // Best effort on a failing path: what stays is removed by the next Open.
    (void)btrfs::DestroySubvolume(pool_.root.get(), StagingName(id));
  }

  const StoreHome home_;
  const PoolPaths paths_;
  const bool preallocated_;
  std::shared_mutex mutex_;  // shared: an operation runs; exclusive: Close
  MountedPool pool_;         // guarded by mutex_; root is empty once closed
  const btrfs::QuotaMode quotas_ = pool_.quotas;
  std::atomic<uint64_t> deletes_ = 0;
};

Result<BtrfsStore::SharedLock> BtrfsStore::Enter() {
  SharedLock lock(mutex_);
  if (!pool_.root.valid()) return FailedPreconditionError("the upper store is closed");
  return lock;
}

Result<BtrfsStore::SharedLock> BtrfsStore::EnterToChange() {
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, Enter());
  ESKER_RETURN_IF_ERROR(CheckPoolWritable(paths_, pool_.root.get()));
  return lock;
}

Result<BtrfsStore::SharedLock> BtrfsStore::EnterToAdd() {
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, EnterToChange());
  if (!preallocated_) ESKER_RETURN_IF_ERROR(CheckHostSpace(home_.fd.get(), home_.path));
  return lock;
}

Result<UniqueFd> BtrfsStore::OpenForIoctl(std::string_view id) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("volume id", id));
  std::string name(id);
  auto fd = OpenBeneath(pool_.root.get(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (fd.ok()) return fd;
  if (fd.status().code() == Code::kNotFound) {
    return NotFoundError("there is no upper volume " + name);
  }
  return fd.status().Wrap("open volume " + name);
}

Result<UniqueFd> BtrfsStore::FinishStaged(std::string_view id, int volume_fd,
                                          uint64_t limit_bytes) {
  ESKER_RETURN_IF_ERROR(MakeVolumeDirectories(volume_fd));
  // Last, so that a tiny limit does not keep a volume from being made.
  if (limit_bytes != 0)
    ESKER_RETURN_IF_ERROR(btrfs::SetLimit(pool_.root.get(), volume_fd, limit_bytes));
  ESKER_FAILPOINT("upper.publish");
  ESKER_RETURN_IF_ERROR(Publish(pool_.root.get(), id));
  return OpenDetached(pool_.root.get(), id);
}

Result<UniqueFd> BtrfsStore::Adopt(std::string_view id, uint64_t limit_bytes) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd volume, OpenForIoctl(id));
  ESKER_RETURN_IF_ERROR(btrfs::SetLimit(pool_.root.get(), volume.get(), limit_bytes));
  return OpenDetached(pool_.root.get(), id);
}

Result<UniqueFd> BtrfsStore::Create(std::string_view id, uint64_t limit_bytes, bool adopt) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("volume id", id));
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, EnterToAdd());
  if (adopt) {
    auto adopted = Adopt(id, limit_bytes);
    if (adopted.ok() || adopted.status().code() != Code::kNotFound) return adopted;
  }
  std::string staging = StagingName(id);
  ESKER_RETURN_IF_ERROR(
      btrfs::CreateSubvolume(pool_.root.get(), staging).Wrap("create " + std::string(id)));
  ScopeGuard drop([&] { DropStaged(id); });
  ESKER_ASSIGN_OR_RETURN(UniqueFd volume,
                         OpenFileAt(pool_.root.get(), staging, O_RDONLY | O_DIRECTORY));
  if (fchmod(volume.get(), 0755) != 0) return ErrnoError("chmod volume " + std::string(id));
  ESKER_ASSIGN_OR_RETURN(UniqueFd out, FinishStaged(id, volume.get(), limit_bytes));
  drop.Dismiss();
  return out;
}

Result<UniqueFd> BtrfsStore::OpenVolume(std::string_view id) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("volume id", id));
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, Enter());
  return OpenDetached(pool_.root.get(), id);
}

Result<UniqueFd> BtrfsStore::Snapshot(std::string_view id, std::string_view clone_id) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("snapshot id", clone_id));
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, EnterToAdd());
  ESKER_ASSIGN_OR_RETURN(UniqueFd source, OpenForIoctl(id));
  Status cloned = btrfs::SnapshotSubvolume(source.get(), pool_.root.get(), std::string(clone_id),
                                           /*read_only=*/true);
  if (!cloned.ok()) return std::move(cloned).Wrap("snapshot " + std::string(id));
  return OpenDetached(pool_.root.get(), clone_id);
}

Result<UniqueFd> BtrfsStore::Clone(std::string_view from, std::string_view to,
                                   uint64_t limit_bytes) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("volume id", to));
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, EnterToAdd());
  ESKER_ASSIGN_OR_RETURN(UniqueFd source, OpenForIoctl(from));
  std::string staging = StagingName(to);
  Status cloned = btrfs::SnapshotSubvolume(source.get(), pool_.root.get(), staging,
                                           /*read_only=*/false);
  if (!cloned.ok()) return std::move(cloned).Wrap("clone " + std::string(from));
  ScopeGuard drop([&] { DropStaged(to); });
  ESKER_ASSIGN_OR_RETURN(UniqueFd volume,
                         OpenFileAt(pool_.root.get(), staging, O_RDONLY | O_DIRECTORY));
  // A clone starts with the limit of its source, which may be used up by what they share.
  ESKER_RETURN_IF_ERROR(btrfs::SetLimit(pool_.root.get(), volume.get(), 0));
  // work/ holds what overlayfs left in the middle of its doing in the source, and its mark that a
  // volatile overlay is mounted, which would refuse the clone's own mount.
  ESKER_RETURN_IF_ERROR(RemoveTree(paths_.mountpoint + "/" + staging + "/work"));
  ESKER_ASSIGN_OR_RETURN(UniqueFd out, FinishStaged(to, volume.get(), limit_bytes));
  drop.Dismiss();
  return out;
}

Status BtrfsStore::SetLimit(std::string_view id, uint64_t limit_bytes) {
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, EnterToChange());
  ESKER_ASSIGN_OR_RETURN(UniqueFd volume, OpenForIoctl(id));
  return btrfs::SetLimit(pool_.root.get(), volume.get(), limit_bytes)
      .Wrap("volume " + std::string(id));
}

Result<UpperUsage> BtrfsStore::GetUsage(std::string_view id) {
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, Enter());
  ESKER_ASSIGN_OR_RETURN(UniqueFd volume, OpenForIoctl(id));
  ESKER_ASSIGN_OR_RETURN(uint64_t subvolume, btrfs::SubvolumeId(volume.get()));
  ESKER_ASSIGN_OR_RETURN(btrfs::QuotaGroup group, btrfs::ReadQuotaGroup(pool_.fs_uuid, subvolume));
  return UpperUsage{group.used, group.limit};
}

Result<UpperSpace> BtrfsStore::Space() {
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, Enter());
  ESKER_ASSIGN_OR_RETURN(UpperSpace pool, FilesystemSpace(pool_.root.get(), paths_.mountpoint));
  if (preallocated_) return pool;
  ESKER_ASSIGN_OR_RETURN(UpperSpace host, FilesystemSpace(home_.fd.get(), home_.path));
  return UpperSpace{pool.total, std::min(pool.available, host.available)};
}

Status BtrfsStore::Delete(std::string_view id) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("volume id", id));
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, EnterToChange());
  Status status = btrfs::DestroySubvolume(pool_.root.get(), std::string(id));
  if (status.code() == Code::kNotFound) return OkStatus();
  ESKER_RETURN_IF_ERROR(status);
  if (++deletes_ % kDeletesPerReap == 0) {
    ESKER_ASSIGN_OR_RETURN(int reaped, btrfs::ReapQuotaGroups(pool_.root.get(), pool_.fs_uuid));
    (void)reaped;
  }
  return OkStatus();
}

Result<std::vector<std::string>> BtrfsStore::List() {
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, Enter());
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(paths_.mountpoint));
  std::erase_if(names, IsStagingName);
  return names;
}

Status BtrfsStore::Close() {
  std::unique_lock lock(mutex_);
  pool_.root.reset();
  return ClosePool(paths_);
}

Status BtrfsStore::Recover() {
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(paths_.mountpoint));
  for (const std::string& name : names) {
    if (!IsStagingName(name)) continue;
    ESKER_RETURN_IF_ERROR(btrfs::DestroySubvolume(pool_.root.get(), name));
  }
  return btrfs::ReapQuotaGroups(pool_.root.get(), pool_.fs_uuid).status();
}

}  // namespace

Result<std::unique_ptr<UpperStore>> OpenBtrfsStore(StoreHome home, const PoolShape& shape) {
  ESKER_ASSIGN_OR_RETURN(MountedPool pool, OpenPool(PoolPaths(home.path), shape));
  auto store = std::make_unique<BtrfsStore>(std::move(home), std::move(pool), shape.preallocate);
  ESKER_RETURN_IF_ERROR(store->Recover());
  return std::unique_ptr<UpperStore>(std::move(store));
}

}  // namespace esker
