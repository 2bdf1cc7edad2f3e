// The writable uppers of container sandboxes: one volume per sandbox, with a hard limit, an atomic
// clone, and a home that survives the death of the server. docs/decisions/0001-upper.md says why.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker {

enum class UpperKind {
  kAuto,   // btrfs; plain only where the kernel, the tools or the privilege for btrfs are missing
  kBtrfs,  // btrfs or an error
  kPlain,  // directories on the host's file system, no limit
};

struct UpperStoreOptions {
  std::string directory;              // e.g. DATA/uppers; made if missing; the store's alone
  uint64_t pool_bytes = 64ull << 30;  // size of the sparse pool; a larger one than before grows it
  UpperKind kind = UpperKind::kAuto;
  // Take all of pool_bytes from the host's file system now (RESOURCE_EXHAUSTED if it has less), so
  // that a host that fills up later cannot hurt running sandboxes. Else the pool is sparse.
  bool preallocate = false;
};

struct UpperSpace {
  uint64_t total = 0;
  uint64_t available = 0;  // what new data can take, of the pool and of the host below it
};

struct UpperUsage {
  uint64_t bytes_used = 0;  // what the volume holds of the pool, metadata and reservations included
  uint64_t limit = 0;       // 0: none
};

// Thread-safe; one process at a time (an flock on DIRECTORY/lock). Ids are those CheckIdentifier
// accepts. Every descriptor returned is O_PATH, close-on-exec, and the root of a detached mount of
// the volume (open_tree): it may be sent to a process in another mount namespace, id-mapped there,
// and keeps the volume readable, but not the pool's mount busy. (Plain without CAP_SYS_ADMIN: an
// ordinary O_PATH descriptor.) A volume holds upper/ and work/, mode 0755, owned by the caller's
// uid (0).
//
// Errors everywhere: RESOURCE_EXHAUSTED (ENOSPC) pool or host disk full; DATA_LOSS (EROFS) the
// kernel made the pool read-only after an I/O error; FAILED_PRECONDITION after Close.
// A writer that hits its volume's limit sees EDQUOT.
// Durability: volumes survive every process and a clean Close; not power loss, nor the machine.
class UpperStore {
 public:
  // Makes the pool or finds it again: mounted by a dead predecessor, attached but not mounted, or
  // only a file. A pool that a power loss or crash of the machine interrupted is made anew, empty.
  // Volumes half made when a predecessor died are removed. UNIMPLEMENTED naming what is missing
  // when kBtrfs cannot be had; FAILED_PRECONDITION when something else is mounted in the way, or
  // another process has the store.
  static Result<std::unique_ptr<UpperStore>> Open(const UpperStoreOptions& options);
  // Whether Open would refuse a machine without btrfs: it is asked for, or the volumes are there.
  static bool NeedsBtrfs(const std::string& directory, UpperKind kind);
  // Removes the store whole: unmounts, detaches, deletes every volume, the pool file and the
  // directory. Missing is OK. FAILED_PRECONDITION while the pool is in use or the store is open.
  static Status Destroy(const std::string& directory);

  // Leaves the pool mounted for a successor. Only Close() takes it down.
  virtual ~UpperStore() = default;

  // A new volume that may add `limit_bytes` to the pool (0: no limit). It appears whole or not at
  // all. ALREADY_EXISTS if there is one, unless `adopt`: then that one, with this limit.
  // UNIMPLEMENTED for a limit where enforces_limit() is false.
  virtual Result<UniqueFd> Create(std::string_view id, uint64_t limit_bytes,
                                  bool adopt = false) = 0;
  virtual Result<UniqueFd> OpenVolume(std::string_view id) = 0;
  // Where the volume lies. Beside upper/ and work/ its user may put what shall go with it.
  virtual std::string PathOf(std::string_view id) const = 0;
  // A read-only volume `clone_id` with the files of `id` as they are now: atomic on btrfs; on plain
  // a copy, for which the caller keeps all writers frozen. Removed with Delete.
  virtual Result<UniqueFd> Snapshot(std::string_view id, std::string_view clone_id) = 0;
  // A writable volume whose upper/ starts as a clone of that of `from` and whose work/ is empty.
  // `limit_bytes` bounds what it adds; what it shares stays charged to the volume that wrote it.
  virtual Result<UniqueFd> Clone(std::string_view from, std::string_view to,
                                 uint64_t limit_bytes) = 0;
  // At once, also below what is used (then every further write fails). 0 lifts it.
  virtual Status SetLimit(std::string_view id, uint64_t limit_bytes) = 0;
  // UNIMPLEMENTED on plain.
  virtual Result<UpperUsage> GetUsage(std::string_view id) = 0;
  // For admission and metrics; costs two statfs calls.
  virtual Result<UpperSpace> Space() = 0;
  // Missing is OK. The name is free on return, the space some seconds later. Takes 4 us per file
  // that the kernel still caches: seconds for a million, so keep it off a thread that must not
  // wait.
  virtual Status Delete(std::string_view id) = 0;
  // All volumes, read-only ones too, sorted; for reaping what no sandbox owns.
  virtual Result<std::vector<std::string>> List() = 0;
  // Unmounts the pool and detaches its loop device; volumes stay in the file for the next Open.
  // FAILED_PRECONDITION while a sandbox or a descriptor still uses a volume (the pool then stays,
  // or is out of the mount table but alive); may be called again.
  virtual Status Close() = 0;

  virtual bool enforces_limit() const = 0;
  // "btrfs (simple quotas)", "btrfs (classic quotas)", or "plain: <why not btrfs>"; for doctor.
  virtual std::string kind() const = 0;
};

}  // namespace esker
