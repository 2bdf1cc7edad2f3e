#include "group_fetch.h"

#include <chrono>
#include <cstring>

#include "base/clock.h"
#include "imagefs/pack.h"

namespace esker {

GroupFetch::GroupFetch(std::shared_ptr<const BlobLayout> layout, uint32_t group)
    : layout_(std::move(layout)), group_(group) {
  const FetchGroup& range = layout_->groups()[group_];
  chunks_.resize(range.end - range.first);
}

Status GroupFetch::Load(PackSource& packs, Counters& counters) {
  const FetchGroup& range = layout_->groups()[group_];
  stored_.resize(range.stored);
  ESKER_ASSIGN_OR_RETURN(size_t got, packs.Read(range.pack, range.offset, stored_));
  stored_.resize(got);
  ++counters.fetches;
  counters.bytes_fetched += got;
  return OkStatus();
}

Status GroupFetch::DecodeFrame(const ChunkLocation& where, std::span<const uint8_t> stored) {
  if (stored.size() < where.frame_stored) {
    return DataLossError("frame at " + std::to_string(where.frame_offset) + " of pack " +
                         where.pack.ToHex() + ": the pack ends before it does");
  }
  std::string_view bytes(reinterpret_cast<const char*>(stored.data()), where.frame_stored);
  ESKER_ASSIGN_OR_RETURN(std::vector<uint8_t> plain, esker::DecodeFrame(bytes, where));
  frames_[where.frame_offset] = std::move(plain);
  return OkStatus();
}

Result<std::span<const uint8_t>> GroupFetch::ProveOnce(uint32_t entry) {
  const BlobMap::Entry& chunk = layout_->entry(entry);
  const ChunkLocation& where = chunk.location;
  if (!frames_.contains(where.frame_offset)) {
    const uint64_t begin = where.frame_offset - layout_->groups()[group_].offset;
    std::span<const uint8_t> stored(stored_);
    stored = stored.subspan(std::min<uint64_t>(begin, stored.size()));
    ESKER_RETURN_IF_ERROR(DecodeFrame(where, stored));
  }
  const std::vector<uint8_t>& frame = frames_[where.frame_offset];
  if (uint64_t{where.offset} + chunk.chunk.length > frame.size()) {
    return DataLossError("a chunk lies outside its frame");
  }
  std::span<const uint8_t> bytes(frame.data() + where.offset, chunk.chunk.length);
  if (Sha256::Of(bytes.data(), bytes.size()) != chunk.chunk.digest) {
    return DataLossError("wrong digest in the frame at " + std::to_string(where.frame_offset) +
                         " of pack " + where.pack.ToHex());
  }
  return bytes;
}

Status GroupFetch::RefreshFrame(const ChunkLocation& where, PackSource& packs, Counters& counters) {
  std::vector<uint8_t> stored(where.frame_stored);
  ESKER_ASSIGN_OR_RETURN(size_t got, packs.Read(where.pack, where.frame_offset, stored));
  ++counters.fetches;
  counters.bytes_fetched += got;
  stored.resize(got);
  // Other chunks of the frame may have been handed out: keep what they point into.
  if (frames_.contains(where.frame_offset))
    retired_.push_back(std::move(frames_[where.frame_offset]));
  frames_.erase(where.frame_offset);
  return DecodeFrame(where, stored);
}

Result<std::span<const uint8_t>> GroupFetch::Prove(uint32_t entry, PackSource& packs,
                                                   Counters& counters) {
  Chunk& chunk = chunks_[entry - layout_->groups()[group_].first];
  {
    std::lock_guard lock(mutex_);
    if (chunk.settled) {
      if (!chunk.status.ok()) return chunk.status;
      return chunk.bytes;
    }
  }
  Result<std::span<const uint8_t>> bytes = ProveOnce(entry);
  if (!bytes.ok()) {
    ++counters.wrong_digests;
    Status refreshed = RefreshFrame(layout_->entry(entry).location, packs, counters);
    if (refreshed.ok()) {
      bytes = ProveOnce(entry);
    } else {
      bytes = refreshed;
    }
  }
  {
    std::lock_guard lock(mutex_);
    chunk.settled = true;
    chunk.status = bytes.status();
    if (bytes.ok()) chunk.bytes = *bytes;
  }
  changed_.notify_all();
  return bytes;
}

void GroupFetch::Finish(const Status& status) {
  {
    std::lock_guard lock(mutex_);
    finished_ = true;
    for (Chunk& chunk : chunks_) {
      if (chunk.settled) continue;
      chunk.settled = true;
      chunk.status = status;
    }
  }
  changed_.notify_all();
  stored_ = {};
}

Status GroupFetch::Copy(uint32_t entry, uint32_t offset, std::span<uint8_t> out,
                        int64_t deadline_nanos) {
  const Chunk& chunk = chunks_[entry - layout_->groups()[group_].first];
  std::unique_lock lock(mutex_);
  while (!chunk.settled) {
    int64_t left = deadline_nanos - Clock::System().MonotonicNanos();
    if (left <= 0) return DeadlineExceededError("another read's fetch took too long");
    changed_.wait_for(lock, std::chrono::nanoseconds(left));
  }
  ESKER_RETURN_IF_ERROR(chunk.status);
  std::memcpy(out.data(), chunk.bytes.data() + offset, out.size());
  return OkStatus();
}

}  // namespace esker
