#include "recordings.h"

#include <algorithm>

namespace esker {

TouchLog::TouchLog(std::shared_ptr<const BlobLayout> layout, int64_t now_nanos)
    : layout_(std::move(layout)), touched_(layout_->entry_count()), last_nanos_(now_nanos) {}

void TouchLog::Touch(uint64_t offset, uint64_t size, int64_t now_nanos) {
  auto [first, end] = layout_->EntriesIn(offset, size);
  for (uint32_t i = first; i < end; ++i) touched_[i].store(true, std::memory_order_relaxed);
  last_nanos_.store(now_nanos, std::memory_order_relaxed);
}

std::vector<ChunkRange> TouchLog::Ranges(uint64_t* bytes) const {
  std::vector<ChunkRange> ranges;
  for (uint32_t i = 0; i < touched_.size(); ++i) {
    if (!touched_[i].load(std::memory_order_relaxed)) continue;
    *bytes += layout_->entry(i).chunk.length;
    if (!ranges.empty() && ranges.back().first + ranges.back().count == i) {
      ++ranges.back().count;
    } else {
      ranges.push_back({i, 1});
    }
  }
  return ranges;
}

Status Recordings::Start(const std::string& name, const std::vector<BlobId>& blobs) {
  const int64_t now = clock_.MonotonicNanos();
  Entry entry;
  entry.started_nanos = now;
  for (const BlobId& id : blobs) {
    Result<std::shared_ptr<ServedBlob>> blob = registry_.Find(id);
    if (!blob.ok()) continue;
    auto log = std::make_shared<TouchLog>((*blob)->layout(), now);
    (*blob)->AddLog(log);
    entry.logs.emplace_back(std::move(*blob), std::move(log));
  }
  std::lock_guard lock(mutex_);
  std::erase_if(entries_,
                [&](const auto& e) { return now - e.second.started_nanos > kForgottenNanos; });
  if (entries_.size() >= kMost && !entries_.contains(name)) {
    return ResourceExhaustedError("there are " + std::to_string(kMost) + " recordings already");
  }
  entries_[name] = std::move(entry);
  return OkStatus();
}

Result<Recording> Recordings::Take(const std::string& name, bool end) {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(name);
  if (found == entries_.end()) return NotFoundError("no recording \"" + name + "\"");
  Recording out;
  int64_t last = found->second.started_nanos;
  for (const auto& [blob, log] : found->second.logs) {
    last = std::max(last, log->last_nanos());
    std::vector<ChunkRange> ranges = log->Ranges(&out.touched_bytes);
    if (!ranges.empty()) out.touched.push_back({blob->id(), std::move(ranges)});
  }
  out.quiet_ms = static_cast<uint64_t>((clock_.MonotonicNanos() - last) / 1'000'000);
  if (end) entries_.erase(found);
  return out;
}

}  // namespace esker
