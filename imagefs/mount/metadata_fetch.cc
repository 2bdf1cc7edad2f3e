#include "metadata_fetch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/io.h"
#include "base/scope_guard.h"
#include "imagefs/erofs.h"
#include "imagefs/pack.h"

namespace esker {
namespace {

// The image is mapped whole to be validated.
constexpr uint64_t kMaxMetadataBytes = 4ull << 30;
constexpr int64_t kRetryNanos = 20'000'000'000;
constexpr auto kFirstPause = std::chrono::milliseconds(20);
constexpr auto kLongestPause = std::chrono::milliseconds(2000);

// Frames of a pack one after the other, each decompressed once.
class FrameReader {
 public:
  explicit FrameReader(const Store& store) : store_(store) {}

  // The chunk's bytes, compared with its digest. A wrong one is read again once.
  Result<std::span<const uint8_t>> Chunk(const BlobMap::Entry& entry) {
    for (bool again : {false, true}) {
      ESKER_RETURN_IF_ERROR(Load(entry.location, again));
      if (uint64_t{entry.location.offset} + entry.chunk.length > frame_.size()) break;
      std::span<const uint8_t> bytes(frame_.data() + entry.location.offset, entry.chunk.length);
      if (Sha256::Of(bytes.data(), bytes.size()) == entry.chunk.digest) return bytes;
    }
    return DataLossError("chunk " + entry.chunk.digest.ToHex() + " in pack " +
                         entry.location.pack.ToHex() + " has other bytes than its digest");
  }

 private:
  Status Load(const ChunkLocation& where, bool again) {
    if (!again && loaded_ && loaded_->pack == where.pack &&
        loaded_->frame_offset == where.frame_offset) {
      return OkStatus();
    }
    if (again || !pack_.valid() || !loaded_ || loaded_->pack != where.pack) {
      ESKER_ASSIGN_OR_RETURN(pack_, store_.OpenPack(where.pack));
    }
    loaded_.reset();
    ESKER_ASSIGN_OR_RETURN(frame_, ReadFrame(pack_.get(), where));
    loaded_ = where;
    return OkStatus();
  }

  const Store& store_;
  UniqueFd pack_;
  std::optional<ChunkLocation> loaded_;
  std::vector<uint8_t> frame_;
};

Status WriteBlob(const BlobMap& map, const Store& store, int fd) {
  FrameReader frames(store);
  for (const BlobMap::Entry& entry : map.entries) {
    ESKER_ASSIGN_OR_RETURN(std::span<const uint8_t> bytes, frames.Chunk(entry));
    ESKER_RETURN_IF_ERROR(PWriteFull(fd, bytes.data(), bytes.size(), entry.blob_offset));
  }
  // The gap after the last chunk.
  if (::ftruncate(fd, static_cast<off_t>(map.size_bytes)) != 0) {
    return ErrnoError("set the size of a metadata image");
  }
  return OkStatus();
}

Status FetchOnce(const Store& store, const LayerCache::MapSource& maps, const ImageLayer& layer,
                 int fd) {
  ESKER_ASSIGN_OR_RETURN(BlobMap map, maps(layer.metadata));
  if (map.id != layer.metadata) {
    return DataLossError("the map that came is of blob " + map.id.ToHex());
  }
  if (map.size_bytes != layer.metadata_bytes) {
    return DataLossError("the manifest says " + std::to_string(layer.metadata_bytes) +
                         " bytes, the blob has " + std::to_string(map.size_bytes));
  }
  return WriteBlob(map, store, fd);
}

// Trouble that may pass by itself. Not: wrong bytes, a full disk here, a blob nobody knows.
bool MayPass(const Status& status, const LayerCache::MapSource& maps, const BlobId& id) {
  switch (status.code()) {
    case Code::kDataLoss:
    case Code::kResourceExhausted:
    case Code::kInvalidArgument:
    case Code::kPermissionDenied:
      return false;
    case Code::kNotFound:
      return maps(id).ok();  // the blob is known: its pack is not visible here yet
    default:
      return true;
  }
}

Status FetchWithRetries(const Store& store, const LayerCache::MapSource& maps,
                        const ImageLayer& layer, int fd) {
  const int64_t begun = Clock::System().MonotonicNanos();
  auto pause = kFirstPause;
  for (;;) {
    Status status = FetchOnce(store, maps, layer, fd);
    if (status.ok()) return status;
    const int64_t limit = status.code() == Code::kNotFound ? kVisibilityNanos : kRetryNanos;
    if (Clock::System().MonotonicNanos() - begun >= limit ||
        !MayPass(status, maps, layer.metadata)) {
      return status;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

Result<erofs::Summary> ValidateFile(int fd, uint64_t size, uint64_t data_bytes) {
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapped == MAP_FAILED) return ErrnoError("map a metadata image");
  ScopeGuard unmap([&] { ::munmap(mapped, size); });
  erofs::ValidateLimits limits;
  limits.data_device_bytes = data_bytes;
  return erofs::Validate({static_cast<const uint8_t*>(mapped), size}, limits);
}

}  // namespace

Result<MetadataRecord> FetchMetadata(const CacheLayout& cache, Store& store,
                                     const LayerCache::MapSource& maps, const ImageLayer& layer) {
  const uint64_t size = layer.metadata_bytes;
  if (size == 0 || size % kBlockSize != 0 || size > kMaxMetadataBytes) {
    return DataLossError("a metadata image cannot have " + std::to_string(size) + " bytes");
  }
  const std::string path = cache.MetaPath(layer.metadata);
  const std::string unfinished = path + ".new";
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd,
                         OpenFile(unfinished, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  ScopeGuard remove([&] { (void)::unlink(unfinished.c_str()); });
  ESKER_RETURN_IF_ERROR(FetchWithRetries(store, maps, layer, fd.get()));
  Result<erofs::Summary> valid = ValidateFile(fd.get(), size, layer.data_bytes);
  if (!valid.ok()) return std::move(valid).status().Wrap("the validator refused it");

  ESKER_FAILPOINT("imagefs.cache.sync_metadata");
  if (::fdatasync(fd.get()) != 0) return ErrnoError("fdatasync " + unfinished);
  if (::rename(unfinished.c_str(), path.c_str()) != 0) return ErrnoError("publish " + path);
  remove.Dismiss();
  ESKER_RETURN_IF_ERROR(FsyncDirectory(cache.MetaDirectory()));
  MetadataRecord record{layer.metadata, size, valid->data_device_bytes};
  ESKER_RETURN_IF_ERROR(SaveMetadataRecord(cache, record));
  return record;
}

}  // namespace esker
