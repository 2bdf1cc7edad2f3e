#include "data_reader.h"

#include <algorithm>

namespace esker::export_internal {
namespace {

constexpr size_t kMaxFrames = 8;
constexpr size_t kMaxPacks = 16;

Status GiveZeros(uint64_t bytes, const ByteSink& sink) {
  static const std::string kZeros(64u << 10, '\0');
  while (bytes > 0) {
    const size_t n = std::min<uint64_t>(bytes, kZeros.size());
    ESKER_RETURN_IF_ERROR(sink({kZeros.data(), n}));
    bytes -= n;
  }
  return OkStatus();
}

}  // namespace

Result<int> DataReader::Pack(const PackId& id) {
  auto found = std::find_if(packs_.begin(), packs_.end(), [&](auto& p) { return p.first == id; });
  if (found != packs_.end()) {
    packs_.splice(packs_.begin(), packs_, found);
  } else {
    ESKER_ASSIGN_OR_RETURN(UniqueFd fd, store_.OpenPack(id));
    packs_.emplace_front(id, std::move(fd));
    if (packs_.size() > kMaxPacks) packs_.pop_back();
  }
  return packs_.front().second.get();
}

Result<const DataReader::Frame*> DataReader::FrameAt(const ChunkLocation& where) {
  auto found = std::find_if(frames_.begin(), frames_.end(), [&](auto& f) {
    return f->pack == where.pack && f->offset == where.frame_offset;
  });
  if (found != frames_.end()) {
    frames_.splice(frames_.begin(), frames_, found);
  } else {
    auto frame = std::make_unique<Frame>(Frame{where.pack, where.frame_offset, {}});
    ESKER_ASSIGN_OR_RETURN(int pack, Pack(where.pack));
    ESKER_ASSIGN_OR_RETURN(frame->bytes, ReadFrame(pack, where));
    frames_.push_front(std::move(frame));
    if (frames_.size() > kMaxFrames) frames_.pop_back();
  }
  return frames_.front().get();
}

Status DataReader::Load(size_t index) {
  if (loaded_ == index) return OkStatus();
  loaded_ = SIZE_MAX;
  const BlobMap::Entry& entry = map_.entries[index];
  ESKER_ASSIGN_OR_RETURN(const Frame* frame, FrameAt(entry.location));
  const uint64_t offset = entry.location.offset;
  if (offset + entry.chunk.length > frame->bytes.size() ||
      Sha256::Of(frame->bytes.data() + offset, entry.chunk.length) != entry.chunk.digest) {
    return DataLossError("chunk " + entry.chunk.digest.ToHex() + " in pack " +
                         entry.location.pack.ToHex() + " has other bytes than its digest");
  }
  chunk_.assign(reinterpret_cast<const char*>(frame->bytes.data()) + offset, entry.chunk.length);
  loaded_ = index;
  return OkStatus();
}

Status DataReader::Read(uint64_t offset, uint64_t length, const ByteSink& sink) {
  const uint64_t end = offset + length;
  if (end < offset || end > map_.size_bytes) {
    return DataLossError("a file's content ends beyond its layer's data");
  }
  // The last chunk that begins at or before `offset`.
  auto next =
      std::upper_bound(map_.entries.begin(), map_.entries.end(), offset,
                       [](uint64_t o, const BlobMap::Entry& e) { return o < e.blob_offset; });
  auto index = static_cast<size_t>(next - map_.entries.begin());
  if (index > 0) --index;
  for (; offset < end; ++index) {
    if (index == map_.entries.size()) return GiveZeros(end - offset, sink);
    const BlobMap::Entry& entry = map_.entries[index];
    const uint64_t chunk_end = entry.blob_offset + entry.chunk.length;
    if (entry.blob_offset > offset) {
      const uint64_t gap = std::min(end, entry.blob_offset) - offset;
      ESKER_RETURN_IF_ERROR(GiveZeros(gap, sink));
      offset += gap;
    }
    if (offset >= chunk_end || offset == end) continue;
    ESKER_RETURN_IF_ERROR(Load(index));
    const uint64_t stop = std::min(end, chunk_end);
    ESKER_RETURN_IF_ERROR(
        sink(std::string_view(chunk_).substr(offset - entry.blob_offset, stop - offset)));
    offset = stop;
  }
  return OkStatus();
}

}  // namespace esker::export_internal
