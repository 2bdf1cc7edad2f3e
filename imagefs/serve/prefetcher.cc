#include "prefetcher.h"

#include <algorithm>
#include <chrono>
#include <tuple>

#include "base/log.h"

namespace esker {

void DemandGate::WaitForCalm() {
  if (waiting_ <= kBusy) return;
  std::unique_lock lock(mutex_);
  // A notification between the look and the wait is lost; the bound below is for that too.
  calm_.wait_for(lock, std::chrono::milliseconds(50), [this] { return waiting_ <= kBusy; });
}

// Cuts ascending entries of a blob into runs.
void Prefetcher::AddRuns(const std::shared_ptr<ServedBlob>& blob,
                         const std::shared_ptr<const BlobLayout>& layout,
                         const std::vector<uint32_t>& entries, std::vector<Run>* runs) {
  std::vector<GroupWant> wants;
  for (uint32_t entry : entries) {
    const uint32_t group = layout->GroupOf(entry);
    if (wants.empty() || wants.back().group != group) wants.push_back({group, {}});
    wants.back().entries.push_back(entry);
  }
  auto at = [&](const GroupWant& want) -> const FetchGroup& {
    return layout->groups()[want.group];
  };
  std::sort(wants.begin(), wants.end(), [&](const GroupWant& a, const GroupWant& b) {
    return std::tie(at(a).pack, at(a).offset) < std::tie(at(b).pack, at(b).offset);
  });
  const size_t before = runs->size();
  for (GroupWant& want : wants) {
    const FetchGroup& group = at(want);
    if (runs->size() > before) {
      std::vector<GroupWant>& run = runs->back().groups;
      const FetchGroup& first = at(run.front());
      const FetchGroup& last = at(run.back());
      const uint64_t last_end = last.offset + last.stored;
      if (first.pack == group.pack && group.offset >= last_end &&
          group.offset - last_end <= kMaxGroupGap &&
          group.offset + group.stored - first.offset <= kMaxRun) {
        run.push_back(std::move(want));
        continue;
      }
    }
    runs->push_back({blob, layout, {}});
    runs->back().groups.push_back(std::move(want));
  }
}

Result<uint64_t> Prefetcher::Start(const std::string& name, const std::vector<BlobRanges>& ranges) {
  auto job = std::make_shared<Job>();
  uint64_t bytes = 0;
  for (const BlobRanges& wanted : ranges) {
    Result<std::shared_ptr<ServedBlob>> blob = registry_.Find(wanted.blob);
    if (!blob.ok() || (*blob)->complete()) continue;
    std::shared_ptr<const BlobLayout> layout = (*blob)->layout();
    std::vector<uint32_t> entries;
    for (const ChunkRange& range : wanted.ranges) {
      const uint64_t end =
          std::min<uint64_t>(uint64_t{range.first} + range.count, layout->entry_count());
      for (uint64_t e = range.first; e < end && bytes < kMostBytes; ++e) {
        const auto entry = static_cast<uint32_t>(e);
        if ((*blob)->cache_file().Has(entry)) continue;
        entries.push_back(entry);
        bytes += layout->entry(entry).chunk.length;
      }
    }
    std::sort(entries.begin(), entries.end());
    entries.erase(std::unique(entries.begin(), entries.end()), entries.end());
    AddRuns(*blob, layout, entries, &job->runs);
  }
  // Taken from the back.
  std::sort(job->runs.begin(), job->runs.end(), [](const Run& a, const Run& b) {
    const FetchGroup& x = a.layout->groups()[a.groups.front().group];
    const FetchGroup& y = b.layout->groups()[b.groups.front().group];
    return std::tie(x.pack, x.offset) > std::tie(y.pack, y.offset);
  });
  const size_t runners = std::min(kThreads, job->runs.size());
  {
    std::lock_guard lock(mutex_);
    if (auto old = jobs_.find(name); old != jobs_.end()) {
      old->second->cancelled = true;
      jobs_.erase(old);
    }
    if (runners == 0) return uint64_t{0};
    if (jobs_.size() >= kMostJobs) {
      return ResourceExhaustedError("there are " + std::to_string(kMostJobs) +
                                    " prefetches already");
    }
    jobs_[name] = job;
    job->active = runners;
  }
  for (size_t i = 0; i < runners; ++i) {
    Status queued = workers_.Submit([this, name, job] { RunNext(name, job); });
    if (!queued.ok()) EndRunner(name, job);
  }
  return bytes;
}

// One run, then the next turn goes to another job.
void Prefetcher::RunNext(const std::string& name, const std::shared_ptr<Job>& job) {
  Run run;
  {
    std::lock_guard lock(job->mutex);
    if (job->cancelled || job->runs.empty() || reader_.stopping()) job->runs.clear();
    if (!job->runs.empty()) {
      run = std::move(job->runs.back());
      job->runs.pop_back();
    }
  }
  if (run.blob == nullptr) return EndRunner(name, job);
  gate_.WaitForCalm();
  Result<uint64_t> kept = reader_.FetchAhead(*run.blob, run.layout, run.groups);
  if (kept.ok()) {
    counters_.prefetched_bytes += *kept;
  } else if (!job->cancelled.exchange(true) && kept.status().code() != Code::kCancelled) {
    LogWarning("prefetch-ended", {{"name", name}, {"error", kept.status().ToString()}});
  }
  if (!workers_.Submit([this, name, job] { RunNext(name, job); }).ok()) EndRunner(name, job);
}

void Prefetcher::EndRunner(const std::string& name, const std::shared_ptr<Job>& job) {
  {
    std::lock_guard lock(job->mutex);
    if (--job->active != 0) return;
  }
  std::lock_guard lock(mutex_);
  auto found = jobs_.find(name);
  if (found != jobs_.end() && found->second == job) jobs_.erase(found);
}

void Prefetcher::Cancel(const std::string& name) {
  std::lock_guard lock(mutex_);
  auto found = jobs_.find(name);
  if (found == jobs_.end()) return;
  found->second->cancelled = true;
  jobs_.erase(found);
}

size_t Prefetcher::running() const {
  std::lock_guard lock(mutex_);
  return jobs_.size();
}

void Prefetcher::FetchSoon(const std::shared_ptr<ServedBlob>& blob,
                           const std::shared_ptr<const BlobLayout>& layout, uint32_t first,
                           uint32_t end) {
  std::vector<uint32_t> entries;
  uint64_t bytes = 0;
  for (uint32_t g = first; g < end; ++g) {
    const FetchGroup& group = layout->groups()[g];
    for (uint32_t e = group.first; e < group.end; ++e) {
      if (blob->cache_file().Has(e)) continue;
      entries.push_back(e);
      bytes += layout->entry(e).chunk.length;
    }
  }
  if (bytes == 0) return;
  if (ahead_bytes_.fetch_add(bytes) + bytes > kMostAhead) {
    ahead_bytes_ -= bytes;
    return;
  }
  std::vector<Run> runs;
  AddRuns(blob, layout, entries, &runs);
  auto left = std::make_shared<std::atomic<size_t>>(runs.size());
  for (Run& run : runs) {
    auto shared = std::make_shared<Run>(std::move(run));
    auto fetch = [this, shared, left, bytes] {
      Result<uint64_t> kept = reader_.FetchAhead(*shared->blob, shared->layout, shared->groups);
      // Nobody waits: a store that fails shows with the read that comes.
      if (kept.ok()) counters_.readahead_bytes += *kept;
      if (--*left == 0) ahead_bytes_ -= bytes;
    };
    if (!workers_.Submit(fetch).ok() && --*left == 0) ahead_bytes_ -= bytes;
  }
}

}  // namespace esker
