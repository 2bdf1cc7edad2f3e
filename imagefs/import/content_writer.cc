#include "content_writer.h"

#include <algorithm>
#include <cstring>

#include "base/wire.h"

namespace esker::import_internal {
namespace {

constexpr size_t kWindow = kMaxChunkSize;
constexpr size_t kLeastHole = 64u << 10;
constexpr uint64_t kMaxUnits = 64u << 10;
constexpr size_t kMaxWaitingBytes = 2u << 20;
constexpr size_t kMaxWaiting = 512;

bool IsZero(const uint8_t* data, size_t size) {
  return data[0] == 0 && std::memcmp(data, data + 1, size - 1) == 0;
}

size_t UnitFor(uint64_t file_size) {
  size_t unit = kBlockSize;
  while (unit < kWindow && file_size / unit > kMaxUnits) unit *= 2;
  return unit;
}

}  // namespace

ContentWriter::ContentWriter(PackWriter& pack, ChunkLookup& lookup, ImportProgress& progress,
                             std::function<Status()> tick)
    : pack_(pack), lookup_(lookup), progress_(progress), tick_(std::move(tick)), window_(kWindow) {}

void ContentWriter::Begin(uint64_t size) {
  unit_ = UnitFor(size);
  used_ = 0;
  window_offset_ = 0;
  chunks_.clear();
}

std::span<uint8_t> ContentWriter::Space() { return std::span(window_).subspan(used_); }

Status ContentWriter::Advance(size_t bytes) {
  used_ += bytes;
  progress_.bytes_plain += bytes;
  return used_ == kWindow ? FlushWindow() : OkStatus();
}

Status ContentWriter::Skip(uint64_t bytes) {
  while (bytes > 0) {
    if (used_ == 0 && bytes >= kWindow) {
      uint64_t whole = bytes / kWindow * kWindow;
      window_offset_ += whole;
      bytes -= whole;
      continue;
    }
    size_t step = std::min<uint64_t>(bytes, kWindow - used_);
    std::memset(window_.data() + used_, 0, step);
    used_ += step;
    bytes -= step;
    if (used_ == kWindow) ESKER_RETURN_IF_ERROR(FlushWindow());
  }
  return OkStatus();
}

Result<std::vector<erofs::Extent>> ContentWriter::End() {
  ESKER_RETURN_IF_ERROR(FlushWindow());
  if (chunks_.empty()) return std::vector<erofs::Extent>{};
  WireWriter key;
  for (const PlacedChunk& chunk : chunks_) {
    key.Put<uint64_t>(chunk.file_offset);
    key.Put<uint32_t>(chunk.ref.length);
    key.PutDigest(chunk.ref.digest);
  }
  auto [it, is_new] = files_.try_emplace(Sha256::Of(key.data()));
  if (is_new) it->second = AppendToBlob();
  return it->second;
}

Result<BlobChunks> ContentWriter::Finish() {
  ESKER_RETURN_IF_ERROR(Flush());
  files_ = {};
  window_ = {};
  return std::move(blob_);
}

Status ContentWriter::FlushWindow() {
  const size_t units = (used_ + unit_ - 1) / unit_;
  size_t begin = 0;      // first unit of the data run at hand
  size_t zero_from = 0;  // first unit of the zero run at hand
  for (size_t i = 0; i <= units; ++i) {
    const size_t at = i * unit_;
    const bool at_end = i == units;
    if (!at_end && IsZero(&window_[at], std::min(unit_, used_ - at))) continue;
    // Units zero_from to i are zeros.
    const size_t zeros = i - zero_from;
    const bool nothing_else = at_end && zeros == units;
    if (zeros > 0 && (zeros * unit_ >= kLeastHole || nothing_else)) {
      ESKER_RETURN_IF_ERROR(AddChunk(begin * unit_, zero_from * unit_));
      begin = i;
    }
    zero_from = i + 1;
  }
  ESKER_RETURN_IF_ERROR(AddChunk(begin * unit_, used_));
  window_offset_ += kWindow;
  used_ = 0;
  return OkStatus();
}

Status ContentWriter::AddChunk(size_t begin, size_t end) {
  end = std::min(end, used_);
  if (begin >= end) return OkStatus();
  ESKER_RETURN_IF_ERROR(tick_());
  std::span<const uint8_t> bytes = std::span(window_).subspan(begin, end - begin);
  ChunkRef ref = {Sha256::Of(bytes.data(), bytes.size()), static_cast<uint32_t>(bytes.size())};
  chunks_.push_back({window_offset_ + begin, ref});
  return Store(ref, bytes);
}

Status ContentWriter::Store(const ChunkRef& ref, std::span<const uint8_t> bytes) {
  if (pack_.HasChunk(ref.digest) || in_store_.contains(ref.digest) ||
      !waiting_digests_.insert(ref.digest).second) {
    progress_.bytes_deduplicated += ref.length;
    return OkStatus();
  }
  waiting_.push_back(ref);
  waiting_bytes_.insert(waiting_bytes_.end(), bytes.begin(), bytes.end());
  const bool enough = waiting_bytes_.size() >= kMaxWaitingBytes || waiting_.size() >= kMaxWaiting;
  return enough ? Flush() : OkStatus();
}

Status ContentWriter::Flush() {
  if (waiting_.empty()) return OkStatus();
  ESKER_ASSIGN_OR_RETURN(const std::vector<bool> known, lookup_.HasChunks(waiting_));
  if (known.size() != waiting_.size()) return InternalError("the index answered another question");
  std::span<const uint8_t> rest(waiting_bytes_);
  for (size_t i = 0; i < waiting_.size(); ++i) {
    const ChunkRef& ref = waiting_[i];
    if (known[i]) {
      in_store_.insert(ref.digest);
      progress_.bytes_deduplicated += ref.length;
    } else {
      ESKER_RETURN_IF_ERROR(pack_.AddChunk(ref, rest.first(ref.length)));
    }
    rest = rest.subspan(ref.length);
  }
  progress_.bytes_stored = pack_.stored_bytes();
  waiting_.clear();
  waiting_bytes_.clear();
  waiting_digests_.clear();
  return OkStatus();
}

std::vector<erofs::Extent> ContentWriter::AppendToBlob() {
  std::vector<erofs::Extent> extents;
  for (const PlacedChunk& chunk : chunks_) {
    erofs::Extent extent = {chunk.file_offset, chunk.ref.length, blob_bytes_};
    blob_.chunks.push_back(chunk.ref);
    blob_bytes_ += AlignToBlock(chunk.ref.length);
    if (!extents.empty() &&
        extents.back().file_offset + extents.back().length == extent.file_offset &&
        extents.back().device_offset + extents.back().length == extent.device_offset) {
      extents.back().length += extent.length;
    } else {
      extents.push_back(extent);
    }
  }
  return extents;
}

}  // namespace esker::import_internal
