#include "start_record.h"

#include <algorithm>
#include <map>

#include "base/wire.h"

namespace esker {
namespace {

constexpr std::string_view kMagic = "ESKRSTRT";
constexpr uint32_t kVersion = 1;

// Ascending and apart.
std::vector<ChunkRange> Normalise(std::vector<ChunkRange> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<ChunkRange> out;
  for (const ChunkRange& range : ranges) {
    if (range.count == 0) continue;
    const uint64_t end = uint64_t{range.first} + range.count;
    if (out.empty() || range.first > out.back().first + out.back().count) {
      out.push_back(range);
    } else if (end > uint64_t{out.back().first} + out.back().count) {
      out.back().count = static_cast<uint32_t>(end - out.back().first);
    }
  }
  return out;
}

}  // namespace

std::string StartRecord::Serialise() const {
  WireWriter out;
  out.PutRaw(kMagic);
  out.Put<uint32_t>(kVersion);
  out.Put<uint32_t>(starts);
  out.Put<uint32_t>(static_cast<uint32_t>(touched.size()));
  for (const BlobRanges& blob : touched) {
    out.PutDigest(blob.blob.digest);
    out.Put<uint32_t>(static_cast<uint32_t>(blob.ranges.size()));
    for (const ChunkRange& range : blob.ranges) {
      out.Put<uint32_t>(range.first);
      out.Put<uint32_t>(range.count);
    }
  }
  return out.Take();
}

Result<StartRecord> StartRecord::Parse(std::string_view bytes) {
  WireReader in(bytes);
  if (in.GetRaw(kMagic.size()) != kMagic) return DataLossError("not a start record");
  if (auto version = in.Get<uint32_t>(); version != kVersion) {
    return DataLossError("start record of version " + std::to_string(version));
  }
  StartRecord record;
  record.starts = in.Get<uint32_t>();
  const auto blobs = in.Get<uint32_t>();
  size_t ranges_left = kMostRanges;
  if (record.starts == 0 || record.starts > kMostStarts || blobs > kMostBlobs) {
    return DataLossError("start record with impossible counts");
  }
  for (uint32_t i = 0; i < blobs; ++i) {
    BlobRanges blob;
    blob.blob.digest = in.GetDigest();
    const auto count = in.Get<uint32_t>();
    if (count == 0 || count > ranges_left) {
      return DataLossError("start record with too many ranges, or none");
    }
    ranges_left -= count;
    uint64_t end = 0;
    for (uint32_t r = 0; r < count && in.ok(); ++r) {
      ChunkRange range;
      range.first = in.Get<uint32_t>();
      range.count = in.Get<uint32_t>();
      if (range.count == 0 || (r > 0 && range.first <= end) ||
          uint64_t{range.first} + range.count > UINT32_MAX) {
        return DataLossError("start record whose ranges are not in order");
      }
      end = uint64_t{range.first} + range.count - 1;
      blob.ranges.push_back(range);
    }
    if (!record.touched.empty() && !(record.touched.back().blob < blob.blob)) {
      return DataLossError("start record whose blobs are not in order");
    }
    record.touched.push_back(std::move(blob));
  }
  ESKER_RETURN_IF_ERROR(in.Finish("start record"));
  return record;
}

void StartRecord::Merge(const std::vector<BlobRanges>& more) {
  std::map<BlobId, std::vector<ChunkRange>> all;
  for (const std::vector<BlobRanges>* part : {&std::as_const(touched), &more}) {
    for (const BlobRanges& blob : *part) {
      std::vector<ChunkRange>& ranges = all[blob.blob];
      ranges.insert(ranges.end(), blob.ranges.begin(), blob.ranges.end());
    }
  }
  touched.clear();
  size_t left = kMostRanges;
  for (auto& [id, ranges] : all) {
    ranges = Normalise(std::move(ranges));
    if (ranges.size() > left) ranges.resize(left);
    left -= ranges.size();
    if (!ranges.empty() && touched.size() < kMostBlobs) touched.push_back({id, std::move(ranges)});
  }
}

uint64_t StartRecord::chunks() const {
  uint64_t chunks = 0;
  for (const BlobRanges& blob : touched) {
    for (const ChunkRange& range : blob.ranges) chunks += range.count;
  }
  return chunks;
}

}  // namespace esker
