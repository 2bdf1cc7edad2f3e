#include "blob_reader.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/log.h"

namespace esker {
namespace {

constexpr int64_t kFirstPauseNanos = 20'000'000;
constexpr int64_t kLongestPauseNanos = 2'000'000'000;

}  // namespace

// The caller's range, and what part of it each entry fills.
struct BlobReader::Range {
  const BlobLayout& layout;
  uint64_t offset;
  std::span<uint8_t> out;
  int64_t deadline_nanos;

  // The part of `out` that is the entry's chunk; `inside` is where in the chunk it starts.
  std::span<uint8_t> ChunkPart(uint32_t entry, uint32_t* inside) const {
    const BlobMap::Entry& e = layout.entry(entry);
    const uint64_t from = std::max(offset, e.blob_offset);
    const uint64_t to = std::min(offset + out.size(), e.blob_offset + e.chunk.length);
    *inside = static_cast<uint32_t>(from - e.blob_offset);
    if (from >= to) return {};
    return out.subspan(from - offset, to - from);
  }
  // The part that is the entry's chunk and the gap behind it.
  std::span<uint8_t> WholePart(uint32_t entry, uint64_t* at) const {
    const BlobMap::Entry& e = layout.entry(entry);
    const uint64_t from = std::max(offset, e.blob_offset);
    const uint64_t to = std::min(offset + out.size(), e.blob_offset + AlignToBlock(e.chunk.length));
    *at = from;
    return out.subspan(from - offset, to - from);
  }
  void FillGap(uint32_t entry) const {
    const BlobMap::Entry& e = layout.entry(entry);
    const uint64_t end = e.blob_offset + e.chunk.length;
    const uint64_t from = std::max(offset, end);
    const uint64_t to = std::min(offset + out.size(), AlignToBlock(end));
    if (from < to) std::memset(out.data() + (from - offset), 0, to - from);
  }
};

bool BlobReader::ReadCached(ServedBlob& blob, uint64_t offset, std::span<uint8_t> out) {
  std::shared_ptr<const BlobLayout> layout = blob.layout();
  auto [first, end] = layout->EntriesIn(offset, out.size());
  return blob.cache_file().Read(*layout, first, end, offset, out);
}

void BlobReader::Read(ServedBlob& blob, uint64_t offset, std::span<uint8_t> out,
                      int64_t deadline_nanos, const Answer& answer) {
  std::shared_ptr<const BlobLayout> layout = blob.layout();
  Range range{*layout, offset, out, deadline_nanos};
  auto [first, end] = layout->EntriesIn(offset, out.size());
  bool answered = false;
  Answer answer_once = [&](const Status& status) {
    if (!std::exchange(answered, true)) answer(status);
  };
  for (uint32_t i = first; i < end;) {
    uint64_t at = 0;
    std::span<uint8_t> part = range.WholePart(i, &at);
    if (blob.cache_file().Read(*layout, i, i + 1, at, part)) {
      ++i;
      continue;
    }
    const uint32_t group = layout->GroupOf(i);
    const uint32_t group_end = std::min(end, layout->groups()[group].end);
    // A fetch that we own is finished before we wait for another's, or two reads could wait for
    // each other. Only behind the last one may the answer go first.
    ServedBlob::Joined joined = blob.Join(layout, group);
    Status status;
    if (joined.owner) {
      status = ReadGroup(blob, range, i, group_end, joined.fetch,
                         group_end == end ? &answer_once : nullptr);
    } else {
      for (uint32_t e = i; e < group_end && status.ok(); ++e) {
        uint32_t inside = 0;
        std::span<uint8_t> chunk = range.ChunkPart(e, &inside);
        if (!chunk.empty()) status = joined.fetch->Copy(e, inside, chunk, deadline_nanos);
        range.FillGap(e);
      }
      // The owner may have come with less time than we have, or with an older map.
      if (!status.ok() && status.code() != Code::kDataLoss && !stopping_ &&
          clock_.MonotonicNanos() < deadline_nanos) {
        if (blob.layout() == layout) continue;
        return Read(blob, offset, out, deadline_nanos, answer);
      }
    }
    if (status.code() == Code::kAborted && !answered) {  // the map has changed
      return Read(blob, offset, out, deadline_nanos, answer);
    }
    if (!status.ok()) return answer_once(status);
    i = group_end;
  }
  answer_once(OkStatus());
}

Status BlobReader::ReadGroup(ServedBlob& blob, Range& range, uint32_t first, uint32_t end,
                             const std::shared_ptr<GroupFetch>& fetch, const Answer* answer_early) {
  Status status = LoadWithRetries(blob, *fetch, range.deadline_nanos);
  if (!status.ok()) {
    blob.Leave(*fetch);
    fetch->Finish(status);
    return status;
  }
  for (uint32_t e = first; e < end && status.ok(); ++e) {
    Result<std::span<const uint8_t>> bytes = fetch->Prove(e, packs_, counters_);
    if (!bytes.ok()) {
      status = bytes.status();
      break;
    }
    uint32_t inside = 0;
    std::span<uint8_t> chunk = range.ChunkPart(e, &inside);
    if (!chunk.empty()) std::memcpy(chunk.data(), bytes->data() + inside, chunk.size());
    range.FillGap(e);
  }
  if (answer_early != nullptr) (*answer_early)(status);
  // Nothing of the caller's memory is touched from here on.
  KeepRest(blob, *fetch);
  blob.Leave(*fetch);
  // Who waits for a chunk that was left out fetches it by itself.
  fetch->Finish(UnavailableError("the chunk was not wanted when its group was fetched"));
  return status;
}

void BlobReader::KeepRest(ServedBlob& blob, GroupFetch& fetch) {
  const BlobLayout& layout = *fetch.layout();
  const FetchGroup& group = layout.groups()[fetch.group()];
  for (uint32_t e = group.first; e < group.end; ++e) {
    if (stopping_) return;
    if (blob.cache_file().Has(e) || !blob.cache_file().Keeps()) continue;
    Result<std::span<const uint8_t>> bytes = fetch.Prove(e, packs_, counters_);
    if (bytes.ok()) {
      blob.cache_file().Keep(layout, e, *bytes);
    } else if (uint64_t suppressed = 0; damage_.Allow(&suppressed)) {
      LogError("chunk-damaged-in-store", {{"blob", blob.id().ToHex()},
                                          {"chunk", e},
                                          {"error", bytes.status().ToString()},
                                          {"not_logged_before", suppressed}});
    }
  }
}

Status BlobReader::LoadWithRetries(ServedBlob& blob, GroupFetch& fetch, int64_t deadline_nanos) {
  int64_t pause = kFirstPauseNanos;
  for (;;) {
    if (stopping_) return CancelledError("the server stops");
    Status status = fetch.Load(packs_, counters_);
    if (status.ok()) return status;
    if (blob.ReloadLayout()) return AbortedError("the chunks were moved");
    const int64_t now = clock_.MonotonicNanos();
    if (now + pause > deadline_nanos) return status;
    ++counters_.store_retries;
    if (!Pause(pause)) return CancelledError("the server stops");
    pause = std::min(pause * 2, kLongestPauseNanos);
  }
}

bool BlobReader::Pause(int64_t nanos) {
  std::unique_lock lock(pause_mutex_);
  pause_.wait_for(lock, std::chrono::nanoseconds(nanos), [this] { return stopping_.load(); });
  return !stopping_;
}

void BlobReader::Stop() {
  {
    std::lock_guard lock(pause_mutex_);
    stopping_ = true;
  }
  pause_.notify_all();
}

}  // namespace esker
