// Volumes as directories on the host's file system: no limit, clones by copying.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "base/id.h"
#include "base/io.h"
#include "base/scope_guard.h"
#include "copy_tree.h"
#include "stores.h"
#include "volume.h"

namespace esker {
namespace {

// A volume that was taken out of sight and is being removed.
constexpr char kTrashPrefix[] = ".gone-";

class PlainStore final : public UpperStore {
 public:
  PlainStore(StoreHome home, UniqueFd root, std::string reason)
      : home_(std::move(home)),
        path_(PlainDirectory(home_.path)),
        reason_(std::move(reason)),
        root_(std::move(root)) {}

  Result<UniqueFd> Create(std::string_view id, uint64_t limit_bytes, bool adopt) override;
  Result<UniqueFd> OpenVolume(std::string_view id) override;
  std::string PathOf(std::string_view id) const override { return Path(std::string(id)); }
  Result<UniqueFd> Snapshot(std::string_view id, std::string_view clone_id) override;
  Result<UniqueFd> Clone(std::string_view from, std::string_view to, uint64_t limit_bytes) override;
  Status SetLimit(std::string_view id, uint64_t limit_bytes) override;
  Result<UpperUsage> GetUsage(std::string_view id) override;
  Result<UpperSpace> Space() override;
  Status Delete(std::string_view id) override;
  Result<std::vector<std::string>> List() override;
  Status Close() override;
  bool enforces_limit() const override { return false; }
  std::string kind() const override { return "plain: " + reason_; }

  // Removes what a predecessor left half made or half removed.
  Status Recover();

 private:
  using SharedLock = std::shared_lock<std::shared_mutex>;

  Result<SharedLock> Enter();
  std::string Path(std::string_view name) const { return path_ + "/" + std::string(name); }
  // Makes a staged volume, fills it by `fill(volume_fd)`, publishes and opens it.
  template <typename Fill>
  Result<UniqueFd> Make(std::string_view id, Fill fill);

  const StoreHome home_;
  const std::string path_;
  const std::string reason_;
  std::shared_mutex mutex_;  // shared: an operation runs; exclusive: Close
  UniqueFd root_;            // guarded by mutex_; empty once closed
};

Status CheckNoLimit(uint64_t limit_bytes) {
  if (limit_bytes == 0) return OkStatus();
  return UnimplementedError(
      "plain uppers cannot limit disk use; give no limit, or a node with btrfs");
}

Result<PlainStore::SharedLock> PlainStore::Enter() {
  SharedLock lock(mutex_);
  if (!root_.valid()) return FailedPreconditionError("the upper store is closed");
  return lock;
}

template <typename Fill>
Result<UniqueFd> PlainStore::Make(std::string_view id, Fill fill) {
  ESKER_RETURN_IF_ERROR(CheckHostSpace(home_.fd.get(), home_.path));
  std::string staging = StagingName(id);
  if (mkdirat(root_.get(), staging.c_str(), 0755) != 0) {
    return ErrnoError("create volume " + std::string(id));
  }
  ScopeGuard drop([&] { (void)RemoveTree(Path(staging)); });  // best effort on a failing path
  ESKER_ASSIGN_OR_RETURN(UniqueFd volume, OpenFileAt(root_.get(), staging, O_RDONLY | O_DIRECTORY));
  ESKER_RETURN_IF_ERROR(fill(volume.get()));
  ESKER_RETURN_IF_ERROR(Publish(root_.get(), id));
  drop.Dismiss();
  return OpenDetached(root_.get(), id);
}

Result<UniqueFd> PlainStore::Create(std::string_view id, uint64_t limit_bytes, bool adopt) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("volume id", id));
  ESKER_RETURN_IF_ERROR(CheckNoLimit(limit_bytes));
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, Enter());
  if (adopt) {
    auto adopted = OpenDetached(root_.get(), id);
    if (adopted.ok() || adopted.status().code() != Code::kNotFound) return adopted;
  }
  return Make(id, MakeVolumeDirectories);
}

Result<UniqueFd> PlainStore::OpenVolume(std::string_view id) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("volume id", id));
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, Enter());
  return OpenDetached(root_.get(), id);
}

Result<UniqueFd> PlainStore::Snapshot(std::string_view id, std::string_view clone_id) {
  return Clone(id, clone_id, 0);
}

Result<UniqueFd> PlainStore::Clone(std::string_view from, std::string_view to,
                                   uint64_t limit_bytes) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("volume id", from));
  ESKER_RETURN_IF_ERROR(CheckIdentifier("volume id", to));
  ESKER_RETURN_IF_ERROR(CheckNoLimit(limit_bytes));
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, Enter());
  auto source =
      OpenBeneath(root_.get(), std::string(from) + "/upper", O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!source.ok() && source.status().code() == Code::kNotFound) {
    return NotFoundError("there is no upper volume " + std::string(from));
  }
  ESKER_RETURN_IF_ERROR(source.status());
  return Make(to, [&](int volume) -> Status {
    ESKER_RETURN_IF_ERROR(MakeVolumeDirectories(volume));
    ESKER_ASSIGN_OR_RETURN(UniqueFd upper, OpenFileAt(volume, "upper", O_RDONLY | O_DIRECTORY));
    return CopyTree(source->get(), upper.get()).Wrap("copy volume " + std::string(from));
  });
}

Status PlainStore::SetLimit(std::string_view id, uint64_t limit_bytes) {
  ESKER_RETURN_IF_ERROR(OpenVolume(id).status());
  return CheckNoLimit(limit_bytes);
}

Result<UpperUsage> PlainStore::GetUsage(std::string_view id) {
  ESKER_RETURN_IF_ERROR(OpenVolume(id).status());
  return UnimplementedError("plain uppers do not account for disk use");
}

Result<UpperSpace> PlainStore::Space() {
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, Enter());
  return FilesystemSpace(root_.get(), path_);
}

Status PlainStore::Delete(std::string_view id) {
  ESKER_RETURN_IF_ERROR(CheckIdentifier("volume id", id));
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, Enter());
  // Out of sight first, so that a death in the middle leaves no volume that lacks files.
  std::string trash = kTrashPrefix + RandomId();
  if (renameat(root_.get(), std::string(id).c_str(), root_.get(), trash.c_str()) != 0) {
    return errno == ENOENT ? OkStatus() : ErrnoError("delete volume " + std::string(id));
  }
  return RemoveTree(Path(trash));
}

Result<std::vector<std::string>> PlainStore::List() {
  ESKER_ASSIGN_OR_RETURN(SharedLock lock, Enter());
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(path_));
  std::erase_if(names, [](const std::string& name) { return name.starts_with('.'); });
  return names;
}

Status PlainStore::Close() {
  std::unique_lock lock(mutex_);
  root_.reset();
  return OkStatus();
}

Status PlainStore::Recover() {
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(path_));
  for (const std::string& name : names) {
    if (name.starts_with('.')) ESKER_RETURN_IF_ERROR(RemoveTree(Path(name)));
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<UpperStore>> OpenPlainStore(StoreHome home, std::string reason) {
  std::string path = PlainDirectory(home.path);
  ESKER_RETURN_IF_ERROR(MakeDirectories(path));
  ESKER_ASSIGN_OR_RETURN(UniqueFd root, OpenFile(path, O_RDONLY | O_DIRECTORY));
  auto store = std::make_unique<PlainStore>(std::move(home), std::move(root), std::move(reason));
  ESKER_RETURN_IF_ERROR(store->Recover());
  return std::unique_ptr<UpperStore>(std::move(store));
}

}  // namespace esker
