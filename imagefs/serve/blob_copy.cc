#include "blob_copy.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/failpoint.h"
#include "base/io.h"
#include "base/log.h"
#include "uncached_read.h"

namespace esker {
namespace {

constexpr size_t kLargeRead = 64u << 10;

int64_t ChangeTime(const struct stat& status) {
  return status.st_ctim.tv_sec * 1'000'000'000 + status.st_ctim.tv_nsec;
}

Result<UniqueFd> OpenOfSize(const std::string& path, int flags, uint64_t size_bytes) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, flags | O_CLOEXEC | O_NOFOLLOW));
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) return ErrnoError("stat " + path);
  if (!S_ISREG(status.st_mode) || static_cast<uint64_t>(status.st_size) != size_bytes) {
    return NotFoundError(path + " has another size than its blob");
  }
  return fd;
}

}  // namespace

// A write lease is given only to one who has the file open alone. The lease itself protects nothing
// here: removing the name of a file is always safe.
bool IsOpenElsewhere(int fd) {
  // Who opens the file in this very moment makes the kernel signal us: by one that does nothing.
  (void)::fcntl(fd, F_SETSIG, SIGURG);
  if (::fcntl(fd, F_SETLEASE, F_WRLCK) == 0) {
    (void)::fcntl(fd, F_SETLEASE, F_UNLCK);
    return false;
  }
  return errno == EAGAIN;
}

// Our own change of the file: excludes others, and keeps the record of the change time true.
class BlobCopy::Change {
 public:
  explicit Change(BlobCopy& copy) : copy_(copy), lock_(copy.change_) {
    copy_.DistrustIfTouched(copy_.own_change_.load());
    ++copy_.changes_;
  }
  ~Change() {
    struct stat status;
    if (::fstat(copy_.fd_.get(), &status) == 0) copy_.own_change_ = ChangeTime(status);
    ++copy_.changes_;
  }

 private:
  BlobCopy& copy_;
  std::lock_guard<std::mutex> lock_;
};

Result<std::shared_ptr<BlobCopy>> BlobCopy::Open(std::shared_ptr<CacheDirectory> directory,
                                                 std::shared_ptr<const BlobLayout> layout,
                                                 const Clock& clock) {
  const BlobId& id = layout->map().id;
  const uint64_t size = layout->map().size_bytes;
  Result<UniqueFd> full = OpenOfSize(directory->layout().FullPath(id), O_RDONLY, size);
  if (full.ok()) {
    return std::shared_ptr<BlobCopy>(
        new BlobCopy(std::move(directory), std::move(layout), clock, std::move(*full), true));
  }
  ESKER_ASSIGN_OR_RETURN(UniqueFd part, OpenOfSize(directory->layout().PartPath(id), O_RDWR, size));
  return std::shared_ptr<BlobCopy>(
      new BlobCopy(std::move(directory), std::move(layout), clock, std::move(part), false));
}

Result<std::shared_ptr<BlobCopy>> BlobCopy::Create(std::shared_ptr<CacheDirectory> directory,
                                                   std::shared_ptr<const BlobLayout> layout,
                                                   const Clock& clock) {
  const std::string path = directory->layout().PartPath(layout->map().id);
  ESKER_FAILPOINT("imagefs.cache.create");
  // A new inode: whoever has the old one open keeps it.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoError("remove " + path);
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd,
                         OpenFile(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW));
  if (::ftruncate(fd.get(), static_cast<off_t>(layout->map().size_bytes)) != 0) {
    return ErrnoError("set the size of " + path);
  }
  std::shared_ptr<BlobCopy> copy(
      new BlobCopy(std::move(directory), std::move(layout), clock, std::move(fd), false));
  copy->presence_.ClearAll();
  return copy;
}

BlobCopy::BlobCopy(std::shared_ptr<CacheDirectory> directory,
                   std::shared_ptr<const BlobLayout> layout, const Clock& clock, UniqueFd fd,
                   bool full)
    : directory_(std::move(directory)),
      layout_(std::move(layout)),
      clock_(clock),
      fd_(std::move(fd)),
      full_(full),
      presence_(full ? PresenceMap(layout_->entry_count())
                     : PresenceMap(directory_->layout().PresencePath(layout_->map().id),
                                   layout_->map().id, layout_->entry_count())),
      used_((layout_->map().size_bytes + kUnitBytes - 1) / kUnitBytes) {
  struct stat status {};
  if (::fstat(fd_.get(), &status) == 0) own_change_ = ChangeTime(status);
  int64_t used = presence_.used_ms();
  if (full) used = status.st_mtim.tv_sec * 1000 + status.st_mtim.tv_nsec / 1'000'000;
  for (auto& unit : used_) unit.store(used, std::memory_order_relaxed);
  recorded_use_ms_ = used;
  unit_first_.reserve(used_.size() + 1);
  for (uint32_t chunk = 0, unit = 0; unit <= used_.size(); ++unit) {
    while (chunk < layout_->entry_count() &&
           layout_->entry(chunk).blob_offset < uint64_t{unit} * kUnitBytes) {
      ++chunk;
    }
    unit_first_.push_back(chunk);
  }
  if (!presence_.file_status().ok()) directory_->ReportWriteError(presence_.file_status());
}

std::string BlobCopy::Path() const {
  const BlobId& id = layout_->map().id;
  return full() ? directory_->layout().FullPath(id) : directory_->layout().PartPath(id);
}

bool BlobCopy::IsTheNamedFile() const {
  struct stat ours, named;
  return ::fstat(fd_.get(), &ours) == 0 && ::lstat(Path().c_str(), &named) == 0 &&
         ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

// --- reading ------------------------------------------------------------------------------------

// Still the file that we know. What somebody else has written to is to be proved again.
bool BlobCopy::Intact() {
  const uint64_t changes = changes_.load();
  const int64_t own = own_change_.load();
  struct stat status;
  if (::fstat(fd_.get(), &status) != 0 || status.st_nlink == 0) return false;
  if (static_cast<uint64_t>(status.st_size) != layout_->map().size_bytes) return false;
  if (changes % 2 != 0 || changes_.load() != changes || ChangeTime(status) == own) return true;
  std::lock_guard lock(change_);
  DistrustIfTouched(own_change_.load());
  return true;
}

void BlobCopy::DistrustIfTouched(int64_t own) {
  struct stat status;
  if (::fstat(fd_.get(), &status) != 0 || ChangeTime(status) == own) return;
  LogWarning("cache-file-touched",
             {{"path", Path()}, {"effect", "its chunks are compared with their digests again"}});
  own_change_ = ChangeTime(status);
  presence_.DistrustAll();
}

CopyRead BlobCopy::Read(uint32_t first, uint32_t end, uint64_t offset, std::span<uint8_t> out) {
  constexpr int kTries = 3;  // against evictions of other units; then it is a miss
  for (int i = 0; i < kTries; ++i) {
    const uint64_t evictions = evictions_.load();
    auto all_here = [&] {
      for (uint32_t chunk = first; chunk < end; ++chunk) {
        if (!Has(chunk)) return false;
      }
      return true;
    };
    if (lost()) return CopyRead::kLost;
    if (!all_here()) return CopyRead::kMiss;
    Touch(first, end);
    if (!Intact()) return CopyRead::kLost;
    for (uint32_t chunk = first; chunk < end; ++chunk) {
      if (!Prove(chunk)) return full() ? CopyRead::kLost : CopyRead::kMiss;
    }
    if (!ReadRange(offset, out)) {
      for (uint32_t chunk = first; chunk < end; ++chunk) presence_.Clear(chunk);
      return full() ? CopyRead::kLost : CopyRead::kMiss;
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!all_here()) return CopyRead::kMiss;
    if (evictions_.load() != evictions) continue;
    // Digests say nothing about gaps, so they are not taken from the file.
    for (uint32_t chunk = first; chunk < end; ++chunk) {
      const BlobMap::Entry& entry = layout_->entry(chunk);
      const uint64_t gap = entry.blob_offset + entry.chunk.length;
      const uint64_t from = std::max(gap, offset);
      const uint64_t to = std::min(AlignToBlock(gap), offset + out.size());
      if (from < to) std::memset(out.data() + (from - offset), 0, to - from);
    }
    return CopyRead::kHit;
  }
  return CopyRead::kMiss;
}

bool BlobCopy::ReadRange(uint64_t offset, std::span<uint8_t> out) const {
  if (!HitFailPoint("imagefs.cache.read").ok()) return false;
  // A large read is a sequential one, and its reader keeps the pages; small ones come back for
  // their neighbours.
  const bool once = out.size() >= kLargeRead;
  while (!out.empty()) {
    ssize_t n = once ? ReadUncached(fd_.get(), out, offset)
                     : ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    out = out.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return true;
}

Result<bool> BlobCopy::ChunkIsRight(uint32_t chunk, std::vector<uint8_t>& buffer) const {
  const BlobMap::Entry& entry = layout_->entry(chunk);
  buffer.resize(entry.chunk.length);
  ESKER_FAILPOINT("imagefs.cache.prove");
  ESKER_RETURN_IF_ERROR(
      PReadExact(fd_.get(), buffer.data(), buffer.size(), entry.blob_offset, "cached chunk"));
  return Sha256::Of(buffer.data(), buffer.size()) == entry.chunk.digest;
}

bool BlobCopy::Prove(uint32_t chunk) {
  switch (presence_.Get(chunk)) {
    case Presence::kVerified:
      return true;
    case Presence::kAbsent:
      return false;
    case Presence::kRecorded:
      break;
  }
  std::vector<uint8_t> buffer;
  Result<bool> right = ChunkIsRight(chunk, buffer);
  if (right.ok() && *right) {
    presence_.Prove(chunk);
    return true;
  }
  DropWrong(chunk, right.status());
  return false;
}

void BlobCopy::DropWrong(uint32_t chunk, const Status& why) {
  LogWarning(
      "cached-chunk-dropped",
      {{"path", Path()}, {"chunk", chunk}, {"reason", why.ok() ? "wrong digest" : why.ToString()}});
  presence_.Clear(chunk);
}

void BlobCopy::Touch(uint32_t first, uint32_t end) {
  const int64_t now = clock_.WallNanos() / 1'000'000;
  const uint64_t from = layout_->entry(first).blob_offset / kUnitBytes;
  const uint64_t to = layout_->entry(end - 1).blob_offset / kUnitBytes;
  for (uint64_t unit = from; unit <= to; ++unit) {
    if (used_[unit].load(std::memory_order_relaxed) != now) {
      used_[unit].store(now, std::memory_order_relaxed);
    }
  }
}

// --- changing -----------------------------------------------------------------------------------

Status BlobCopy::Keep(uint32_t chunk, std::span<const uint8_t> bytes) {
  Change change(*this);
  if (full() || lost()) return OkStatus();
  ESKER_FAILPOINT("imagefs.cache.write");
  ESKER_RETURN_IF_ERROR(
      PWriteFull(fd_.get(), bytes.data(), bytes.size(), layout_->entry(chunk).blob_offset));
  ESKER_FAILPOINT("imagefs.cache.before_presence");
  Touch(chunk, chunk + 1);
  presence_.SetVerified(chunk);  // after the bytes: a reader may come at once
  return OkStatus();
}

Status BlobCopy::EvictUnit(uint32_t unit, int64_t used_ms) {
  Change change(*this);
  if (full() || lost() || UnitUsedMs(unit) > used_ms || !UnitPresent(unit)) return OkStatus();
  auto [first, end] = ChunksOf(unit);
  const BlobMap::Entry& last = layout_->entry(end - 1);
  const uint64_t from = layout_->entry(first).blob_offset;
  const uint64_t to = AlignToBlock(last.blob_offset + last.chunk.length);
  ESKER_FAILPOINT("imagefs.cache.evict.before_clear");
  ++evictions_;  // odd: reads that see it, or see it change, look again
  for (uint32_t chunk = first; chunk < end; ++chunk) presence_.Clear(chunk);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Status status = HitFailPoint("imagefs.cache.evict.before_punch");
  if (status.ok() && ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                 static_cast<off_t>(from), static_cast<off_t>(to - from)) != 0) {
    status = errno == EOPNOTSUPP || errno == ENOSYS
                 ? UnimplementedError("no holes can be punched in " + Path())
                 : ErrnoError("punch a hole in " + Path());
  }
  ++evictions_;
  ESKER_RETURN_IF_ERROR(status);
  ESKER_FAILPOINT("imagefs.cache.evict.after_punch");
  return OkStatus();
}

Status BlobCopy::Retire() {
  Change change(*this);
  if (lost_.exchange(true)) return OkStatus();
  ESKER_FAILPOINT("imagefs.cache.retire.before_unlink");
  const std::string path = Path();
  if (IsTheNamedFile() && ::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoError("remove " + path);
  }
  ESKER_FAILPOINT("imagefs.cache.retire.after_unlink");
  if (!full()) {
    (void)::unlink(directory_->layout().PresencePath(layout_->map().id).c_str());
  }
  return OkStatus();
}

Status BlobCopy::VerifyForCompletion(const std::atomic<bool>& stop) {
  std::vector<uint8_t> bytes;
  for (uint32_t i = 0; i < layout_->entry_count(); ++i) {
    if (stop) return CancelledError("the server stops");
    const BlobMap::Entry& entry = layout_->entry(i);
    // With the gap: the kernel will show it.
    bytes.resize(AlignToBlock(entry.chunk.length));
    ESKER_RETURN_IF_ERROR(
        PReadExact(fd_.get(), bytes.data(), bytes.size(), entry.blob_offset, Path()));
    const bool zeros = std::all_of(bytes.begin() + entry.chunk.length, bytes.end(),
                                   [](uint8_t b) { return b == 0; });
    if (!zeros || Sha256::Of(bytes.data(), entry.chunk.length) != entry.chunk.digest) {
      // With its gap emptied, since what keeps a chunk does not write that.
      Change change(*this);
      ++evictions_;
      presence_.Clear(i);
      (void)::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        static_cast<off_t>(entry.blob_offset), static_cast<off_t>(bytes.size()));
      ++evictions_;
      return DataLossError("chunk " + std::to_string(i) + " of " + Path() +
                           " is not what was kept");
    }
    presence_.Prove(i);
  }
  return OkStatus();
}

Status BlobCopy::Complete(const std::atomic<bool>& stop) {
  if (full()) return OkStatus();
  const std::string path = Path();
  const uint64_t evictions = evictions_.load();
  ESKER_FAILPOINT("imagefs.cache.complete.before_sync");
  if (::fdatasync(fd_.get()) != 0) return ErrnoError("fdatasync " + path);
  (void)::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);  // best effort
  ESKER_RETURN_IF_ERROR(VerifyForCompletion(stop));

  Change change(*this);
  if (lost() || !IsTheNamedFile()) {
    return FailedPreconditionError(path + " was removed while it was open");
  }
  if (evictions_.load() != evictions || !AllPresent()) {
    return AbortedError("ranges of " + path + " were evicted while it was verified");
  }
  ESKER_FAILPOINT("imagefs.cache.complete.before_rename");
  const BlobId& id = layout_->map().id;
  if (::rename(path.c_str(), directory_->layout().FullPath(id).c_str()) != 0) {
    return ErrnoError("rename " + path);
  }
  full_ = true;  // from here on it is never written nor punched
  ESKER_FAILPOINT("imagefs.cache.complete.after_rename");
  (void)::unlink(directory_->layout().PresencePath(id).c_str());
  return FsyncDirectory(directory_->layout().DataDirectory());
}

Result<BlobCopy::Verified> BlobCopy::Verify(const std::function<bool()>& stop) {
  Verified out;
  std::vector<uint8_t> buffer;
  (void)::fdatasync(fd_.get());
  (void)::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);  // to compare what the disk has
  for (uint32_t chunk = 0; chunk < layout_->entry_count(); ++chunk) {
    if (stop()) return CancelledError("nobody waits for the answer any more");
    if (!Has(chunk)) continue;
    const uint64_t evictions = evictions_.load();
    Result<bool> right = ChunkIsRight(chunk, buffer);
    if (evictions_.load() != evictions || !Has(chunk)) continue;  // evicted while it was read
    ++out.checked;
    if (right.ok() && *right) continue;
    ++out.wrong;
    DropWrong(chunk, right.status());
  }
  if (out.wrong > 0 && full()) ESKER_RETURN_IF_ERROR(Retire());
  return out;
}

// --- what eviction asks -------------------------------------------------------------------------

bool BlobCopy::UnitPresent(uint32_t unit) const {
  auto [first, end] = ChunksOf(unit);
  for (uint32_t chunk = first; chunk < end; ++chunk) {
    if (Has(chunk)) return true;
  }
  return false;
}

uint64_t BlobCopy::UnitBytes(uint32_t unit) const {
  auto [first, end] = ChunksOf(unit);
  uint64_t bytes = 0;
  for (uint32_t chunk = first; chunk < end; ++chunk) {
    if (Has(chunk)) bytes += AlignToBlock(layout_->entry(chunk).chunk.length);
  }
  return bytes;
}

int64_t BlobCopy::LastUsedMs() const {
  int64_t last = 0;
  for (const auto& unit : used_) last = std::max(last, unit.load(std::memory_order_relaxed));
  return last;
}

bool BlobCopy::OpenElsewhere() const {
  std::lock_guard lock(change_);
  return IsOpenElsewhere(fd_.get());
}

uint64_t BlobCopy::DiskBytes() const {
  struct stat status;
  uint64_t bytes = 0;
  if (::fstat(fd_.get(), &status) == 0) bytes += static_cast<uint64_t>(status.st_blocks) * 512;
  const std::string presence = directory_->layout().PresencePath(layout_->map().id);
  if (!full() && ::lstat(presence.c_str(), &status) == 0) {
    bytes += static_cast<uint64_t>(status.st_blocks) * 512;
  }
  return bytes;
}

void BlobCopy::RecordUse() {
  const int64_t used = LastUsedMs();
  if (recorded_use_ms_.exchange(used) == used) return;
  if (!full()) return presence_.RecordUse(used);
  Change change(*this);
  const timespec time{used / 1000, used % 1000 * 1'000'000};
  const timespec times[2] = {time, time};
  (void)::futimens(fd_.get(), times);  // a hint
}

}  // namespace esker
