#include "imagefs/cache_layout.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/failpoint.h"
#include "base/io.h"
#include "base/wire.h"

namespace esker {
namespace {

constexpr std::string_view kMagic = "ESKRCMPL";
constexpr uint32_t kVersion = 1;

std::string CompleteRecord(const BlobId& id, uint64_t size_bytes) {
  WireWriter out;
  out.PutRaw(kMagic);
  out.Put<uint32_t>(kVersion);
  out.PutDigest(id.digest);
  out.Put<uint64_t>(size_bytes);
  out.Put<uint32_t>(Crc32c(out.data().data(), out.size()));
  return out.Take();
}

}  // namespace

Status CacheLayout::MakeDirectories() const {
  ESKER_RETURN_IF_ERROR(esker::MakeDirectories(MetaDirectory()));
  ESKER_RETURN_IF_ERROR(esker::MakeDirectories(MapDirectory()));
  return esker::MakeDirectories(DataDirectory());
}

Status MarkBlobComplete(const CacheLayout& cache, const BlobId& id, uint64_t size_bytes) {
  ESKER_FAILPOINT("imagefs.cache.mark_complete");
  return ReplaceFileDurably(cache.CompletePath(id), CompleteRecord(id, size_bytes));
}

Status UnmarkBlobComplete(const CacheLayout& cache, const BlobId& id) {
  const std::string path = cache.CompletePath(id);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoError("remove " + path);
  return OkStatus();
}

bool IsBlobComplete(const CacheLayout& cache, const BlobId& id, uint64_t size_bytes) {
  Result<std::string> record = ReadFileToString(cache.CompletePath(id), 4096);
  if (!record.ok() || *record != CompleteRecord(id, size_bytes)) return false;
  struct stat status;
  return ::lstat(cache.DataPath(id).c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         static_cast<uint64_t>(status.st_size) == size_bytes;
}

}  // namespace esker
