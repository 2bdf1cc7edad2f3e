#include "cache_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/failpoint.h"
#include "base/io.h"
#include "base/log.h"
#include "uncached_read.h"

namespace esker {
namespace {

constexpr size_t kLargeRead = 64u << 10;

}  // namespace

void CacheHealth::ReportWriteError(const Status& status) {
  const int64_t now = clock_.MonotonicNanos();
  int64_t before = paused_until_.exchange(now + kPauseNanos);
  if (now < before) return;  // another thread has said so
  LogWarning("cache-not-writable",
             {{"error", status.ToString()}, {"effect", "reads are served without keeping"}});
}

CacheFile::CacheFile(const CacheLayout& cache, const BlobLayout& layout, CacheHealth& health)
    : cache_(cache),
      id_(layout.map().id),
      size_bytes_(layout.map().size_bytes),
      health_(health),
      presence_(cache.PresencePath(id_), id_, layout.entry_count()) {
  if (!presence_.file_status().ok()) health_.ReportWriteError(presence_.file_status());
  Status opened = OpenData();
  if (opened.ok()) return;
  health_.ReportWriteError(opened);
  data_.reset();
  presence_.ClearAll();
}

Status CacheFile::OpenData() {
  const std::string path = cache_.DataPath(id_);
  ESKER_ASSIGN_OR_RETURN(data_, OpenFile(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW));
  struct stat status;
  if (::fstat(data_.get(), &status) != 0) return ErrnoError("stat " + path);
  if (static_cast<uint64_t>(status.st_size) == size_bytes_) return OkStatus();
  // New, or not what the map says: nothing in it counts.
  presence_.ClearAll();
  ESKER_RETURN_IF_ERROR(UnmarkBlobComplete(cache_, id_));
  if (::ftruncate(data_.get(), 0) != 0 ||
      ::ftruncate(data_.get(), static_cast<off_t>(size_bytes_)) != 0) {
    return ErrnoError("set the size of " + path);
  }
  return OkStatus();
}

bool CacheFile::Prove(const BlobLayout& layout, uint32_t chunk) {
  switch (presence_.Get(chunk)) {
    case Presence::kVerified:
      return true;
    case Presence::kAbsent:
      return false;
    case Presence::kRecorded:
      break;
  }
  const BlobMap::Entry& entry = layout.entry(chunk);
  std::vector<uint8_t> bytes(entry.chunk.length);
  Status read =
      PReadExact(data_.get(), bytes.data(), bytes.size(), entry.blob_offset, "cached chunk");
  if (!read.ok() || Sha256::Of(bytes.data(), bytes.size()) != entry.chunk.digest) {
    LogWarning("cached-chunk-dropped",
               {{"blob", id_.ToHex()},
                {"chunk", chunk},
                {"reason", read.ok() ? std::string("wrong digest") : read.ToString()}});
    Drop(chunk);
    return false;
  }
  presence_.SetVerified(chunk);
  return true;
}

void CacheFile::Drop(uint32_t chunk) {
  // First the promise, then the chunk: a wrong file must not be mounted by itself again.
  Status unmarked = UnmarkBlobComplete(cache_, id_);
  if (!unmarked.ok()) health_.ReportWriteError(unmarked);
  presence_.Clear(chunk);
}

bool CacheFile::Read(const BlobLayout& layout, uint32_t first, uint32_t end, uint64_t offset,
                     std::span<uint8_t> out) {
  if (!data_.valid()) return false;
  for (uint32_t i = first; i < end; ++i) {
    if (!Has(i)) return false;
  }
  for (uint32_t i = first; i < end; ++i) {
    if (!Prove(layout, i)) return false;
  }
  if (!ReadRange(offset, out)) {
    for (uint32_t i = first; i < end; ++i) Drop(i);
    return false;
  }
  // Digests say nothing about gaps, so they are not taken from the file.
  for (uint32_t i = first; i < end; ++i) {
    const BlobMap::Entry& entry = layout.entry(i);
    const uint64_t gap = entry.blob_offset + entry.chunk.length;
    const uint64_t gap_end = AlignToBlock(gap);
    const uint64_t from = std::max(gap, offset);
    const uint64_t to = std::min(gap_end, offset + out.size());
    if (from < to) std::memset(out.data() + (from - offset), 0, to - from);
  }
  return true;
}

bool CacheFile::ReadRange(uint64_t offset, std::span<uint8_t> out) {
  // A large read is a sequential one, and its reader keeps the pages; small ones come back for
  // their neighbours.
  const bool once = out.size() >= kLargeRead;
  while (!out.empty()) {
    ssize_t n = once ? ReadUncached(data_.get(), out, offset)
                     : ::pread(data_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    out = out.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return true;
}

void CacheFile::Keep(const BlobLayout& layout, uint32_t chunk, std::span<const uint8_t> bytes) {
  if (!Keeps() || Has(chunk)) return;
  Status written = HitFailPoint("imagefs.cache.write");
  if (written.ok()) {
    written = PWriteFull(data_.get(), bytes.data(), bytes.size(), layout.entry(chunk).blob_offset);
  }
  if (!written.ok()) return health_.ReportWriteError(written);
  presence_.SetVerified(chunk);  // after the bytes: a reader may come at once
}

Status CacheFile::Complete(const BlobLayout& layout, const std::atomic<bool>& stop) {
  const std::string path = cache_.DataPath(id_);
  struct stat ours, named;
  if (::fstat(data_.get(), &ours) != 0 || ::lstat(path.c_str(), &named) != 0 ||
      ours.st_ino != named.st_ino || ours.st_dev != named.st_dev) {
    return FailedPreconditionError(path + " was removed while it was open");
  }
  if (::fdatasync(data_.get()) != 0) return ErrnoError("fdatasync " + path);
  (void)::posix_fadvise(data_.get(), 0, 0, POSIX_FADV_DONTNEED);  // best effort
  std::vector<uint8_t> bytes;
  for (uint32_t i = 0; i < layout.entry_count(); ++i) {
    if (stop) return CancelledError("the server stops");
    const BlobMap::Entry& entry = layout.entry(i);
    // With the gap: the kernel will show it.
    bytes.resize(AlignToBlock(entry.chunk.length));
    ESKER_RETURN_IF_ERROR(
        PReadExact(data_.get(), bytes.data(), bytes.size(), entry.blob_offset, path));
    bool zeros = std::all_of(bytes.begin() + entry.chunk.length, bytes.end(),
                             [](uint8_t b) { return b == 0; });
    if (!zeros) {  // what keeps a chunk does not write its gap
      std::memset(bytes.data() + entry.chunk.length, 0, bytes.size() - entry.chunk.length);
      ESKER_RETURN_IF_ERROR(PWriteFull(data_.get(), bytes.data() + entry.chunk.length,
                                       bytes.size() - entry.chunk.length,
                                       entry.blob_offset + entry.chunk.length));
    }
    if (!zeros || Sha256::Of(bytes.data(), entry.chunk.length) != entry.chunk.digest) {
      Drop(i);
      return DataLossError("chunk " + std::to_string(i) + " of " + path + " is not what was kept");
    }
    presence_.SetVerified(i);
  }
  return MarkBlobComplete(cache_, id_, size_bytes_);
}

}  // namespace esker
