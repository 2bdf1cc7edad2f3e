#include "cache_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "base/io.h"
#include "base/log.h"

namespace esker {
namespace {

constexpr int64_t kFullPauseNanos = 1'000'000'000;
constexpr int64_t kFailedPauseNanos = 30'000'000'000;
// What the file system keeps free for others: a fiftieth, at most so much.
constexpr uint64_t kMostReserve = 1ull << 30;
constexpr size_t kHexDigits = 64;

bool IsFull(const Status& status) {
  return status.error_number() == ENOSPC || status.error_number() == EDQUOT;
}

int64_t Millis(const timespec& time) { return time.tv_sec * 1000 + time.tv_nsec / 1'000'000; }

uint64_t SumBlocks(const std::string& directory) {
  Result<std::vector<std::string>> names = ListDirectory(directory);
  if (!names.ok()) return 0;
  uint64_t bytes = 0;
  for (const std::string& name : *names) {
    struct stat status;
    if (::lstat((directory + "/" + name).c_str(), &status) == 0) {
      bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    }
  }
  return bytes;
}

}  // namespace

Result<std::shared_ptr<CacheDirectory>> CacheDirectory::Open(const std::string& root,
                                                             const Clock& clock) {
  std::shared_ptr<CacheDirectory> directory(new CacheDirectory({root}, clock));
  ESKER_RETURN_IF_ERROR(directory->layout_.MakeDirectories());
  ESKER_ASSIGN_OR_RETURN(directory->lock_, OpenFile(directory->layout_.LockPath(),
                                                    O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW));
  if (::flock(directory->lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return FailedPreconditionError(root + " is still used by another blob server");
    }
    return ErrnoError("lock " + directory->layout_.LockPath());
  }
  struct stat status;
  if (::fstat(directory->lock_.get(), &status) != 0) return ErrnoError("stat the lock of " + root);
  directory->device_ = status.st_dev;
  directory->inode_ = status.st_ino;
  directory->RemoveForeign();
  directory->Refresh();
  if (!directory->Present()) return UnavailableError(root + " vanished while it was opened");
  return directory;
}

// Files of the version before, which may be mounted still: their names go, what is open stays.
void CacheDirectory::RemoveForeign() const {
  Result<std::vector<std::string>> names = ListDirectory(layout_.DataDirectory());
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (name.ends_with(".data") || name.ends_with(".complete")) {
      (void)::unlink((layout_.DataDirectory() + "/" + name).c_str());
    }
  }
}

void CacheDirectory::Unlock() const { (void)::flock(lock_.get(), LOCK_UN); }

bool CacheDirectory::Writable() const {
  return present_.load() && clock_.MonotonicNanos() >= paused_until_.load();
}

void CacheDirectory::ReportWriteError(const Status& status) {
  ++write_errors_;
  const bool full = IsFull(status);
  const int64_t now = clock_.MonotonicNanos();
  const int64_t before = paused_until_.exchange(now + (full ? kFullPauseNanos : kFailedPauseNanos));
  const bool known = now < before || (full && now < before + kFailedPauseNanos);
  failing_ = !full;
  if (known) return;
  LogWarning("cache-not-writable",
             {{"directory", layout_.root},
              {"error", status.ToString()},
              {"effect", full ? "reads are served without keeping until there is room"
                              : "nothing is kept here for 30 s"}});
}

void CacheDirectory::Written(uint64_t bytes) {
  data_bytes_ += bytes;
  written_bytes_ += bytes;
  pending_bytes_ -= bytes;
}

void CacheDirectory::Refund(uint64_t bytes) {
  uint64_t before = data_bytes_.load();
  while (!data_bytes_.compare_exchange_weak(before, before - std::min(before, bytes))) {
  }
}

void CacheDirectory::Look() {
  struct stat named;
  struct statvfs space;
  const bool present = ::stat(layout_.LockPath().c_str(), &named) == 0 && named.st_dev == device_ &&
                       named.st_ino == inode_ && ::statvfs(layout_.root.c_str(), &space) == 0;
  if (present_.exchange(present) && !present) {
    LogWarning("cache-directory-gone",
               {{"directory", layout_.root}, {"effect", "its blobs are fetched again elsewhere"}});
  }
  if (!present) return;
  if ((space.f_flag & ST_RDONLY) != 0) {
    ReportWriteError(Status::FromErrno(EROFS, "look at " + layout_.root));
  }
  free_bytes_ = space.f_bavail * space.f_frsize;
  file_system_bytes_ = space.f_blocks * space.f_frsize;
  other_bytes_ = SumOthers();
  const uint64_t reserve = std::min(file_system_bytes_.load() / 50, kMostReserve);
  const uint64_t all = used_bytes() + free_bytes_.load();
  room_limit_ = all > reserve ? all - reserve : 0;
  shortage_ = free_bytes_.load() < reserve ? 2 * reserve - free_bytes_.load() : 0;
}

uint64_t CacheDirectory::SumOthers() {
  std::lock_guard lock(look_mutex_);
  std::vector<int64_t> changed;
  for (const std::string& path : {layout_.MapDirectory(), layout_.MetaDirectory()}) {
    struct stat status;
    if (::stat(path.c_str(), &status) != 0) continue;
    changed.push_back(status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec);
  }
  if (changed == others_changed_) return other_bytes_.load();
  others_changed_ = changed;
  return SumBlocks(layout_.MapDirectory()) + SumBlocks(layout_.MetaDirectory());
}

void CacheDirectory::Refresh() {
  {
    std::lock_guard lock(look_mutex_);
    others_changed_.clear();
  }
  // What is written meanwhile may have been seen or not: it counts.
  const uint64_t written = written_bytes_.load();
  const uint64_t sum = SumBlocks(layout_.DataDirectory());
  data_bytes_ = sum + (written_bytes_.load() - written);
  Look();
}

Result<std::vector<StoredBlob>> CacheDirectory::List() const {
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(layout_.DataDirectory()));
  std::map<BlobId, StoredBlob> found;
  for (const std::string& name : names) {
    if (name.size() <= kHexDigits) continue;
    Result<BlobId> id = BlobId::FromHex(std::string_view(name).substr(0, kHexDigits));
    const std::string_view suffix = std::string_view(name).substr(kHexDigits);
    struct stat status;
    if (!id.ok() || (suffix != ".part" && suffix != ".full" && suffix != ".presence") ||
        ::lstat((layout_.DataDirectory() + "/" + name).c_str(), &status) != 0) {
      continue;
    }
    StoredBlob& blob = found[*id];
    blob.id = *id;
    blob.full = blob.full || suffix == ".full";
    blob.disk_bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    if (suffix != ".presence") blob.size_bytes = static_cast<uint64_t>(status.st_size);
    // That of a .part is the time of a write; the presence file is told of reads too.
    if (suffix != ".part") blob.used_ms = std::max(blob.used_ms, Millis(status.st_mtim));
  }
  std::vector<StoredBlob> out;
  out.reserve(found.size());
  for (auto& [id, blob] : found) out.push_back(blob);
  return out;
}

}  // namespace esker
