#include "imagefs/read_blob.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "imagefs/pack.h"

namespace esker {
namespace {

// Keeps the pack and the frame that it used last.
class FrameReader {
 public:
  explicit FrameReader(const Store& store) : store_(store) {}

  Result<const std::vector<uint8_t>*> Read(const ChunkLocation& where) {
    if (!at_ || at_->pack != where.pack) {
      at_.reset();
      ESKER_ASSIGN_OR_RETURN(pack_, store_.AwaitPack(where.pack, deadline_));
    }
    if (!at_ || at_->frame_offset != where.frame_offset) {
      at_.reset();
      ESKER_ASSIGN_OR_RETURN(frame_, ReadFrame(pack_.get(), where));
    }
    at_ = where;
    return &frame_;
  }

 private:
  const Store& store_;
  const int64_t deadline_ = Clock::System().MonotonicNanos() + kVisibilityNanos;
  UniqueFd pack_;
  std::optional<ChunkLocation> at_;
  std::vector<uint8_t> frame_;
};

}  // namespace

Result<std::string> ReadBlob(const Store& store, const BlobMap& map, uint64_t bytes) {
  std::string out;
  FrameReader frames(store);
  for (const BlobMap::Entry& entry : map.entries) {
    if (entry.blob_offset >= bytes) break;
    const ChunkRef& chunk = entry.chunk;
    ESKER_ASSIGN_OR_RETURN(const std::vector<uint8_t>* frame, frames.Read(entry.location));
    const uint64_t offset = entry.location.offset;
    if (offset + chunk.length > frame->size() ||
        Sha256::Of(frame->data() + offset, chunk.length) != chunk.digest) {
      return DataLossError("chunk " + chunk.digest.ToHex() + " in pack " +
                           entry.location.pack.ToHex() + " has other bytes than its digest");
    }
    out.resize(entry.blob_offset, '\0');
    out.append(reinterpret_cast<const char*>(frame->data()) + offset, chunk.length);
  }
  out.resize(std::min(bytes, map.size_bytes), '\0');
  return out;
}

}  // namespace esker
