#include "blob_reader.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/log.h"

namespace esker {
namespace {

constexpr int64_t kFirstPauseNanos = 20'000'000;
constexpr int64_t kLongestPauseNanos = 2'000'000'000;

// Counts memory that a fetch holds.
class InFlight {
 public:
  InFlight(ServerCounters& counters, uint64_t bytes) : counters_(counters), bytes_(bytes) {
    counters_.in_flight_bytes += bytes_;
  }
  ~InFlight() { counters_.in_flight_bytes -= bytes_; }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

 private:
  ServerCounters& counters_;
  const uint64_t bytes_;
};

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
  InFlight held(counters_, fetch->layout()->groups()[fetch->group()].stored);
  Status status = LoadWithRetries(blob, *fetch, range.deadline_nanos);
  if (!status.ok()) {
    blob.Leave(*fetch);
    fetch->Finish(status);
    return status;
  }
  for (uint32_t e = first; e < end && status.ok(); ++e) {
    Result<std::span<const uint8_t>> bytes = fetch->Prove(e, packs_, blob.counters());
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
    if (!blob.cache_file().Has(e) && blob.cache_file().Keeps()) (void)KeepOne(blob, fetch, e);
  }
}

bool BlobReader::KeepOne(ServedBlob& blob, GroupFetch& fetch, uint32_t entry) {
  Result<std::span<const uint8_t>> bytes = fetch.Prove(entry, packs_, blob.counters());
  if (bytes.ok()) {
    blob.cache_file().Keep(*fetch.layout(), entry, *bytes);
    return true;
  }
  if (uint64_t suppressed = 0; damage_.Allow(&suppressed)) {
    LogError("chunk-damaged-in-store", {{"blob", blob.id().ToHex()},
                                        {"chunk", entry},
                                        {"error", bytes.status().ToString()},
                                        {"not_logged_before", suppressed}});
  }
  return false;
}

// A group that this thread fetches ahead.
struct BlobReader::Ahead {
  const GroupWant* want;
  std::shared_ptr<GroupFetch> fetch;
};

Result<uint64_t> BlobReader::FetchAhead(ServedBlob& blob,
                                        const std::shared_ptr<const BlobLayout>& layout,
                                        std::span<const GroupWant> groups) {
  std::vector<Ahead> mine;
  for (const GroupWant& want : groups) {
    const bool here = std::all_of(want.entries.begin(), want.entries.end(),
                                  [&](uint32_t e) { return blob.cache_file().Has(e); });
    if (here) continue;
    ServedBlob::Joined joined = blob.Join(layout, want.group);
    if (joined.owner) mine.push_back({&want, std::move(joined.fetch)});
  }
  if (mine.empty()) return uint64_t{0};
  const FetchGroup& first = layout->groups()[mine.front().want->group];
  const FetchGroup& last = layout->groups()[mine.back().want->group];
  std::vector<uint8_t> stored(last.offset + last.stored - first.offset);
  InFlight held(counters_, stored.size());
  Result<size_t> got = stopping_ ? Result<size_t>(CancelledError("the server stops"))
                                 : packs_.Read(first.pack, first.offset, stored);
  if (!got.ok()) {
    // Who waits for one of them tries by itself.
    for (Ahead& ahead : mine) {
      blob.Leave(*ahead.fetch);
      ahead.fetch->Finish(got.status());
    }
    return std::move(got).status();
  }
  stored.resize(*got);
  ++blob.counters().fetches;
  blob.counters().bytes_fetched += *got;
  for (Ahead& ahead : mine) {
    const FetchGroup& group = layout->groups()[ahead.want->group];
    const size_t begin = std::min<size_t>(group.offset - first.offset, stored.size());
    const size_t end = std::min<size_t>(begin + group.stored, stored.size());
    ahead.fetch->Provide({stored.begin() + static_cast<ptrdiff_t>(begin),
                          stored.begin() + static_cast<ptrdiff_t>(end)});
  }
  return KeepAhead(blob, mine);
}

uint64_t BlobReader::KeepAhead(ServedBlob& blob, std::span<Ahead> fetches) {
  uint64_t kept = 0;
  for (Ahead& ahead : fetches) {
    for (uint32_t e : ahead.want->entries) {
      if (stopping_) break;
      if (blob.cache_file().Has(e)) continue;
      if (KeepOne(blob, *ahead.fetch, e)) kept += ahead.fetch->layout()->entry(e).chunk.length;
    }
    blob.Leave(*ahead.fetch);
    ahead.fetch->Finish(UnavailableError("the chunk was not wanted when its group was fetched"));
  }
  return kept;
}

Status BlobReader::LoadWithRetries(ServedBlob& blob, GroupFetch& fetch, int64_t deadline_nanos) {
  int64_t pause = kFirstPauseNanos;
  for (;;) {
    if (stopping_) return CancelledError("the server stops");
    Status status = fetch.Load(packs_, blob.counters());
    if (status.ok()) return status;
    if (blob.ReloadLayout()) return AbortedError("the chunks were moved");
    const int64_t now = clock_.MonotonicNanos();
    if (now + pause > deadline_nanos) return status;
    ++blob.counters().store_retries;
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
