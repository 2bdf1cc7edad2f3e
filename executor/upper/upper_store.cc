#include "executor/upper_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "base/io.h"
#include "stores.h"

namespace esker {
namespace {

Result<StoreHome> LockHome(const std::string& directory) {
  StoreHome home;
  home.path = directory;
  ESKER_ASSIGN_OR_RETURN(home.fd, OpenFile(directory, O_RDONLY | O_DIRECTORY));
  ESKER_ASSIGN_OR_RETURN(home.lock,
                         OpenFileAt(home.fd.get(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW));
  if (flock(home.lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return FailedPreconditionError("the upper store " + directory +
                                     " is open in another process; stop that one first");
    }
    return ErrnoError("lock " + directory + "/lock");
  }
  return home;
}

// What an existing store is must not change with what this machine can do today: its volumes would
// vanish from sight.
Result<UpperKind> DecideKind(const UpperStoreOptions& options, std::string* reason) {
  bool has_pool = PathExists(PoolPaths(options.directory).image);
  bool has_plain = PathExists(PlainDirectory(options.directory));
  if (options.kind == UpperKind::kPlain || (options.kind == UpperKind::kAuto && has_plain)) {
    if (has_pool) {
      return FailedPreconditionError(options.directory +
                                     " holds a btrfs pool; destroy it before it becomes plain");
    }
    *reason = options.kind == UpperKind::kPlain ? "asked for" : "it was made so";
    return UpperKind::kPlain;
  }
  if (has_plain) {
    return FailedPreconditionError(options.directory +
                                   " holds plain volumes; destroy it before it becomes btrfs");
  }
  Status support = CheckPoolSupport();
  if (support.ok()) return UpperKind::kBtrfs;
  bool may_fall_back = options.kind == UpperKind::kAuto && !has_pool;
  if (!may_fall_back || support.code() != Code::kUnimplemented) return support;
  *reason = support.message();
  return UpperKind::kPlain;
}

}  // namespace

Result<std::unique_ptr<UpperStore>> UpperStore::Open(const UpperStoreOptions& options) {
  if (options.directory.empty() || options.directory[0] != '/') {
    return InvalidArgumentError("the upper store needs an absolute directory, not '" +
                                options.directory + "'");
  }
  ESKER_RETURN_IF_ERROR(MakeDirectories(options.directory));
  ESKER_ASSIGN_OR_RETURN(StoreHome home, LockHome(options.directory));
  std::string reason;
  ESKER_ASSIGN_OR_RETURN(UpperKind kind, DecideKind(options, &reason));
  PoolShape shape = {options.pool_bytes, options.preallocate};
  auto store = kind == UpperKind::kBtrfs ? OpenBtrfsStore(std::move(home), shape)
                                         : OpenPlainStore(std::move(home), std::move(reason));
  if (!store.ok()) return store.status().Wrap("upper store " + options.directory);
  return store;
}

bool UpperStore::NeedsBtrfs(const std::string& directory, UpperKind kind) {
  return kind == UpperKind::kBtrfs || PathExists(PoolPaths(directory).image);
}

Status UpperStore::Destroy(const std::string& directory) {
  if (!PathExists(directory)) return OkStatus();
  ESKER_ASSIGN_OR_RETURN(StoreHome home, LockHome(directory));
  ESKER_RETURN_IF_ERROR(ClosePool(PoolPaths(directory)));
  // The lock goes last and with the directory; a new store in its place starts with a new lock.
  return RemoveTree(directory);
}

}  // namespace esker
