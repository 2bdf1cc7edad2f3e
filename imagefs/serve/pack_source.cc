#include "pack_source.h"

#include <cerrno>

#include "base/failpoint.h"
#include "uncached_read.h"

namespace esker {

Result<size_t> PackSource::Read(const PackId& pack, uint64_t offset, std::span<uint8_t> out) {
  ESKER_FAILPOINT("imagefs.serve.read_pack");
  ESKER_ASSIGN_OR_RETURN(Handle handle, Open(pack));
  size_t done = 0;
  while (done < out.size()) {
    // What is kept is the plain bytes, in the cache file.
    ssize_t n = ReadUncached(handle->get(), out.subspan(done), offset + done);
    if (n == 0) break;
    if (n < 0) {
      if (errno == EINTR) continue;
      Status failed = ErrnoError("read pack " + pack.ToHex() + " at " + std::to_string(offset));
      Forget(pack);
      return failed;
    }
    done += static_cast<size_t>(n);
  }
  if (done < out.size()) Forget(pack);  // an old view of the file, perhaps
  return done;
}

Result<PackSource::Handle> PackSource::Open(const PackId& pack) {
  std::shared_ptr<const Store> store;
  {
    std::lock_guard lock(mutex_);
    if (auto found = open_.find(pack); found != open_.end()) {
      recent_.splice(recent_.begin(), recent_, found->second.position);
      return found->second.handle;
    }
    store = store_;
  }
  // Outside the lock: a store that hangs must not hang those that read open packs.
  if (store == nullptr) {
    ESKER_ASSIGN_OR_RETURN(store, Store::Open(directory_));
  }
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, store->OpenPack(pack));
  auto handle = std::make_shared<const UniqueFd>(std::move(fd));
  std::lock_guard lock(mutex_);
  store_ = store;
  if (auto found = open_.find(pack); found != open_.end()) return found->second.handle;
  recent_.push_front(pack);
  open_.emplace(pack, OpenFile{handle, recent_.begin()});
  if (open_.size() > kMaxOpen) {
    open_.erase(recent_.back());
    recent_.pop_back();
  }
  return handle;
}

void PackSource::Forget(const PackId& pack) {
  std::lock_guard lock(mutex_);
  auto found = open_.find(pack);
  if (found == open_.end()) return;
  recent_.erase(found->second.position);
  open_.erase(found);
}

}  // namespace esker
