#include "start_profiler.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"

namespace esker {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(500);
constexpr int kPublishTries = 3;
constexpr size_t kMostSettled = 65536;

// Hostile records name what they like: only the image's own blobs are fetched for it.
std::vector<BlobRanges> OfImage(std::vector<BlobRanges> touched, const std::vector<BlobId>& blobs) {
  std::erase_if(touched, [&](const BlobRanges& ranges) {
    return std::find(blobs.begin(), blobs.end(), ranges.blob) == blobs.end();
  });
  return touched;
}

Result<StartRecord> LoadRecord(const Store& store, const ImageId& image, uint64_t* number) {
  ESKER_ASSIGN_OR_RETURN(Store::Record record,
                         store.LatestRecord(kStartRecordSpace, image.ToHex()));
  *number = record.number;
  return StartRecord::Parse(record.content);
}

}  // namespace

StartProfiler::StartProfiler(Store& store, BlobServerClient& blobs, const Clock& clock)
    : store_(store), blobs_(blobs), clock_(clock), looker_([this] { Run(); }) {}

StartProfiler::~StartProfiler() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  looker_.join();
}

bool StartProfiler::Change(const std::string& sandbox, const std::function<void(Start&)>& change) {
  std::lock_guard lock(mutex_);
  auto found = starts_.find(sandbox);
  if (found == starts_.end()) return false;
  change(found->second);
  return true;
}

void StartProfiler::Created(const std::string& sandbox, const ImageId& image,
                            std::vector<BlobId> data_blobs, bool all_served) {
  if (data_blobs.empty()) return;
  {
    std::lock_guard lock(mutex_);
    Start& start = starts_[sandbox];
    start.image = image;
    start.began_nanos = clock_.MonotonicNanos();
  }
  Status queued = workers_.Submit([this, sandbox, image, blobs = std::move(data_blobs),
                                   all_served] { Begin(sandbox, image, blobs, all_served); });
  if (!queued.ok()) Drop(sandbox);  // so many starts at once: the others carry the record
}

void StartProfiler::Begin(const std::string& sandbox, const ImageId& image,
                          const std::vector<BlobId>& data_blobs, bool all_served) {
  bool record = false;
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || !starts_.contains(sandbox)) return;
    record = all_served && !settled_.contains(image) && being_recorded_.insert(image).second;
  }
  // First, since the reads begin now.
  if (record) {
    Status started = blobs_.StartRecording(sandbox, data_blobs);
    if (!started.ok()) {
      LogInfo("start-not-recorded", {{"sandbox", sandbox}, {"cause", started.ToString()}});
    }
    // It may have ended meanwhile; the server forgets such a recording by itself.
    const bool known = Change(sandbox, [&](Start& start) { start.recording = started.ok(); });
    if (!known || !started.ok()) {
      std::lock_guard lock(mutex_);
      being_recorded_.erase(image);
    }
  }
  uint64_t number = 0;
  Result<StartRecord> known = LoadRecord(store_, image, &number);
  if (known.ok() && known->starts >= StartRecord::kMostStarts) {
    std::lock_guard lock(mutex_);
    if (settled_.size() >= kMostSettled) settled_.clear();
    settled_.insert(image);
  }
  if (known.ok()) {
    Result<uint64_t> bytes =
        blobs_.Prefetch(sandbox, OfImage(std::move(known->touched), data_blobs));
    if (bytes.ok()) {
      Change(sandbox, [](Start& start) { start.prefetching = true; });
      LogDebug("start-prefetched", {{"sandbox", sandbox}, {"bytes", *bytes}});
    } else {
      LogInfo("start-not-prefetched", {{"sandbox", sandbox}, {"cause", bytes.status().ToString()}});
    }
  } else if (known.status().code() != Code::kNotFound) {
    LogWarning("start-record-unreadable",
               {{"image", image.ToHex()}, {"cause", known.status().ToString()}});
  }
}

void StartProfiler::CommandStarted(const std::string& sandbox) {
  Change(sandbox, [](Start& start) { start.command_seen = true; });
}

void StartProfiler::Ended(const std::string& sandbox) {
  if (Change(sandbox, [](Start& start) { start.ended = true; })) wake_.notify_all();
}

void StartProfiler::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    // Without a start under way it sleeps until the next look all the same: twice a second.
    wake_.wait_for(lock, kLookEvery);
    std::map<std::string, Start> starts = starts_;
    lock.unlock();
    for (const auto& [sandbox, start] : starts) Look(sandbox, start);
    lock.lock();
  }
}

void StartProfiler::Look(const std::string& sandbox, const Start& start) {
  const int64_t age_ms = (clock_.MonotonicNanos() - start.began_nanos) / 1'000'000;
  const bool over = start.ended || age_ms >= kLongestMs;
  if (start.ended && start.prefetching) {
    Status cancelled = blobs_.CancelPrefetch(sandbox);
    if (!cancelled.ok()) {
      LogDebug("prefetch-not-cancelled", {{"sandbox", sandbox}, {"cause", cancelled.ToString()}});
    }
  }
  if (!start.recording) {
    if (over) Drop(sandbox);
    return;
  }
  if (!over && !start.command_seen) return;
  Result<Recording> recording = blobs_.TakeRecording(sandbox, over);
  if (recording.ok() && !over && recording->quiet_ms < kQuietMs) return;
  if (recording.ok() && !over) recording = blobs_.TakeRecording(sandbox, true);
  if (recording.ok()) {
    Status published = Publish(start.image, *recording);
    if (!published.ok()) {
      LogWarning("start-record-not-kept",
                 {{"image", start.image.ToHex()}, {"cause", published.ToString()}});
    }
  }
  // A server that was replaced has forgotten it: this start does not count.
  std::lock_guard lock(mutex_);
  being_recorded_.erase(start.image);
  auto found = starts_.find(sandbox);
  if (found == starts_.end()) return;
  found->second.recording = false;
  if (!found->second.prefetching || over) starts_.erase(found);
}

void StartProfiler::Drop(const std::string& sandbox) {
  std::lock_guard lock(mutex_);
  auto found = starts_.find(sandbox);
  if (found == starts_.end()) return;
  if (found->second.recording) being_recorded_.erase(found->second.image);
  starts_.erase(found);
}

Status StartProfiler::Publish(const ImageId& image, const Recording& recording) {
  if (recording.touched.empty()) return OkStatus();
  for (int attempt = 0; attempt < kPublishTries; ++attempt) {
    uint64_t number = 0;
    Result<StartRecord> known = LoadRecord(store_, image, &number);
    StartRecord record;
    if (known.ok()) {
      record = std::move(*known);
    } else if (known.status().code() != Code::kNotFound &&
               known.status().code() != Code::kDataLoss) {
      return std::move(known).status();
    }
    if (record.starts >= StartRecord::kMostStarts) return OkStatus();
    const uint64_t before = record.chunks();
    StartRecord mine;
    mine.Merge(recording.touched);
    // Most of what it read was in the kernel's memory, where nobody sees it: it tells little.
    if (mine.chunks() * 2 < before) return OkStatus();
    record.Merge(recording.touched);
    ++record.starts;
    Status published =
        store_.PublishRecord(kStartRecordSpace, image.ToHex(), number + 1, record.Serialise());
    if (published.code() == Code::kAlreadyExists) continue;  // another node's start
    if (published.ok()) {
      LogInfo("start-recorded",
              {{"image", image.ToHex()}, {"starts", record.starts}, {"chunks", record.chunks()}});
    }
    return published;
  }
  return AbortedError("other nodes were faster each time");
}

}  // namespace esker
