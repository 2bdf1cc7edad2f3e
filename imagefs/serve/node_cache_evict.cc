// What NodeCache removes, and in which order; and what it answers to `esker cache`.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/io.h"
#include "base/log.h"
#include "node_cache.h"

namespace esker {
namespace {

constexpr int64_t kFruitlessNanos = 5'000'000'000;
constexpr uint32_t kWhole = UINT32_MAX;

// When a mount of the blob was prepared last: the node touches its map then.
int64_t MapUsedMs(const CacheLayout& home, const BlobId& id) {
  struct stat status;
  if (::stat(home.MapPath(id).c_str(), &status) != 0) return 0;
  return status.st_mtim.tv_sec * 1000 + status.st_mtim.tv_nsec / 1'000'000;
}

// Of a blob whose map is gone: nobody can read it any more.
void RemoveDeadFiles(const CacheLayout& layout, const BlobId& id) {
  for (const std::string& path :
       {layout.PartPath(id), layout.FullPath(id), layout.PresencePath(id)}) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
      LogWarning("cache-file-not-removed",
                 {{"path", path}, {"error", ErrnoError("unlink").ToString()}});
    }
  }
}

}  // namespace

struct NodeCache::Goal {
  uint64_t bytes = 0;  // to free, wherever
  std::map<const CacheDirectory*, uint64_t> of_directory;
  int64_t unused_since_ms = INT64_MIN;  // and whatever was used last before that
  bool dry_run = false;

  uint64_t freed = 0;
  std::map<const CacheDirectory*, uint64_t> freed_in;
  std::set<BlobId> blobs;

  bool Wants(const CacheDirectory& directory, int64_t used_ms) const {
    if (freed < bytes || used_ms < unused_since_ms) return true;
    auto found = of_directory.find(&directory);
    if (found == of_directory.end()) return false;
    auto done = freed_in.find(&directory);
    return (done == freed_in.end() ? 0 : done->second) < found->second;
  }
  void Count(const CacheDirectory& directory, const BlobId& id, uint64_t bytes_freed) {
    freed += bytes_freed;
    freed_in[&directory] += bytes_freed;
    blobs.insert(id);
  }
};

struct NodeCache::Victim {
  int64_t used_ms = 0;
  uint32_t present = 0;  // which of those on disk
  uint32_t unit = kWhole;
};

struct NodeCache::Present {
  StoredBlob blob;
  std::shared_ptr<CacheDirectory> directory;
  std::shared_ptr<CacheFile> file;  // null: not in use
};

std::vector<NodeCache::Present> NodeCache::ListPresent() const {
  std::vector<Present> present;
  for (const auto& directory : directories()) {
    Result<std::vector<StoredBlob>> blobs = directory->List();
    if (!blobs.ok()) continue;
    for (StoredBlob& blob : *blobs) {
      Present one{blob, directory, KnownFile(blob.id)};
      std::shared_ptr<BlobCopy> copy = one.file ? one.file->copy() : nullptr;
      if (copy == nullptr || &copy->directory() != directory.get()) {
        one.file = nullptr;
      } else {
        one.blob.used_ms = copy->LastUsedMs();
      }
      if (blob.full) {
        one.blob.used_ms = std::max(one.blob.used_ms, MapUsedMs(home_, blob.id));
      }
      present.push_back(std::move(one));
    }
  }
  return present;
}

std::vector<NodeCache::Victim> NodeCache::FindVictims(const std::vector<Present>& present) const {
  std::vector<Victim> victims;
  for (uint32_t i = 0; i < present.size(); ++i) {
    std::shared_ptr<BlobCopy> copy = present[i].file ? present[i].file->copy() : nullptr;
    if (copy == nullptr || present[i].blob.full) {
      victims.push_back({present[i].blob.used_ms, i, kWhole});
      continue;
    }
    for (uint32_t unit = 0; unit < copy->unit_count(); ++unit) {
      if (copy->UnitPresent(unit)) victims.push_back({copy->UnitUsedMs(unit), i, unit});
    }
  }
  std::stable_sort(victims.begin(), victims.end(),
                   [](const Victim& a, const Victim& b) { return a.used_ms < b.used_ms; });
  return victims;
}

void NodeCache::EvictUnits(CacheFile& file, uint32_t unit, int64_t used_ms, Goal& goal) {
  std::shared_ptr<BlobCopy> copy = file.copy();
  if (copy == nullptr || copy->full() || copy->lost()) return;
  const uint64_t before = copy->DiskBytes();
  Status evicted = copy->EvictUnit(unit, used_ms);
  if (evicted.code() == Code::kUnimplemented) evicted = file.Drop(copy);
  if (!evicted.ok()) {
    LogWarning("cache-not-evicted", {{"error", evicted.ToString()}});
    return;
  }
  const uint64_t after = copy->lost() ? 0 : copy->DiskBytes();
  const uint64_t freed = before > after ? before - after : 0;
  copy->directory().Refund(freed);
  ++counts_.evictions;
  counts_.evicted_bytes += freed;
  goal.Count(copy->directory(), file.id(), freed);
}

void NodeCache::Evict(const Victim& victim, std::vector<Present>& present, Goal& goal) {
  Present& one = present[victim.present];
  CacheDirectory& directory = *one.directory;
  if (one.file == nullptr) {
    Result<std::shared_ptr<CacheFile>> file = FileOf(one.blob.id);
    if (!file.ok()) {
      RemoveDeadFiles(directory.layout(), one.blob.id);
      directory.Refund(one.blob.disk_bytes);
      return goal.Count(directory, one.blob.id, one.blob.disk_bytes);
    }
    one.file = *file;
  }
  if (victim.unit != kWhole) return EvictUnits(*one.file, victim.unit, victim.used_ms, goal);
  std::shared_ptr<BlobCopy> copy = one.file->copy();
  if (copy == nullptr || &copy->directory() != &directory) return;
  if (!copy->full()) {
    // Not read since the start: all of it was used at the same time, as far as anybody knows.
    const int64_t used_ms = std::max(victim.used_ms, copy->LastUsedMs());
    for (uint32_t unit = 0; unit < copy->unit_count(); ++unit) {
      if (!goal.Wants(directory, victim.used_ms)) return;
      if (copy->UnitPresent(unit)) EvictUnits(*one.file, unit, used_ms, goal);
    }
    if (!copy->Empty()) return;
  } else if (copy->OpenElsewhere()) {
    return;  // mounted: its blocks would stay
  }
  const uint64_t freed = copy->DiskBytes();
  Status dropped = one.file->Drop(copy);
  if (!dropped.ok()) return LogWarning("cache-not-evicted", {{"error", dropped.ToString()}});
  directory.Refund(freed);
  ++counts_.evictions;
  counts_.evicted_bytes += freed;
  goal.Count(directory, one.blob.id, freed);
}

void NodeCache::Pass(Goal& goal, const std::function<bool()>& stop) {
  std::vector<Present> present = ListPresent();
  for (const Victim& victim : FindVictims(present)) {
    if (stop()) return;
    const Present& one = present[victim.present];
    if (!goal.Wants(*one.directory, victim.used_ms)) continue;
    if (!goal.dry_run) {
      Evict(victim, present, goal);
      continue;
    }
    std::shared_ptr<BlobCopy> copy = one.file ? one.file->copy() : nullptr;
    if (victim.unit == kWhole) {
      goal.Count(*one.directory, one.blob.id, one.blob.disk_bytes);
    } else if (copy != nullptr) {
      goal.Count(*one.directory, one.blob.id, copy->UnitBytes(victim.unit));
    }
  }
}

bool NodeCache::OverHighWater() const {
  if (used_bytes() > budget_.load() / 20 * 19) return true;
  for (const auto& directory : directories()) {
    if (directory->shortage() > 0) return true;
  }
  return false;
}

void NodeCache::EvictToLowWater() {
  std::lock_guard pass(pass_mutex_);
  if (clock_.MonotonicNanos() < fruitless_until_) return;
  Goal goal;
  for (const auto& directory : directories()) {
    directory->Refresh();
    if (directory->shortage() > 0) goal.of_directory[directory.get()] = directory->shortage();
  }
  const uint64_t used = used_bytes(), budget = budget_.load();
  if (used > budget / 20 * 19) goal.bytes = used - budget / 10 * 9;
  if (goal.bytes == 0 && goal.of_directory.empty()) return;
  Pass(goal, [this] {
    std::lock_guard lock(wake_mutex_);
    return stopping_;
  });
  for (const auto& directory : directories()) directory->Refresh();
  if (goal.freed > 0) {
    LogInfo("cache-evicted", {{"bytes", goal.freed}, {"used", used_bytes()}, {"budget", budget}});
  } else {
    fruitless_until_ = clock_.MonotonicNanos() + kFruitlessNanos;
    if (used > budget) {
      LogWarning("cache-over-budget", {{"used", used},
                                       {"budget", budget},
                                       {"reason", "all that is left is mounted, or metadata"}});
    }
  }
}

void NodeCache::RecordUses() {
  std::vector<std::shared_ptr<CacheFile>> files;
  {
    std::lock_guard lock(files_mutex_);
    for (const auto& [id, weak] : files_) {
      if (std::shared_ptr<CacheFile> file = weak.lock()) files.push_back(std::move(file));
    }
  }
  for (const auto& file : files) {
    if (std::shared_ptr<BlobCopy> copy = file->copy(); copy && !copy->lost()) copy->RecordUse();
  }
}

// --- CacheControl -------------------------------------------------------------------------------

CacheStats NodeCache::Stats() {
  CacheStats stats;
  stats.budget_bytes = budget_.load();
  stats.used_bytes = used_bytes();
  stats.evicted_bytes = counts_.evicted_bytes.load();
  stats.evictions = counts_.evictions.load();
  for (const auto& directory : directories()) stats.write_errors += directory->write_errors();
  return stats;
}

Status NodeCache::List(const std::function<bool(const CachedBlob&)>& each) {
  for (const Present& one : ListPresent()) {
    CachedBlob blob;
    blob.id = one.blob.id;
    blob.size_bytes = one.blob.size_bytes;
    blob.cached_bytes = one.blob.disk_bytes;
    blob.complete = one.blob.full;
    blob.last_used_ms = one.blob.used_ms;
    blob.directory = one.directory->layout().root;
    std::shared_ptr<BlobCopy> copy = one.file ? one.file->copy() : nullptr;
    if (one.blob.full && copy != nullptr) {
      blob.mounted = copy->OpenElsewhere();
    } else if (one.blob.full) {
      Result<UniqueFd> fd =
          OpenFile(one.directory->layout().FullPath(one.blob.id), O_RDONLY | O_CLOEXEC);
      blob.mounted = fd.ok() && IsOpenElsewhere(fd->get());
    }
    if (!each(blob)) break;
  }
  return OkStatus();
}

Result<PruneReport> NodeCache::Prune(const PruneRequest& request,
                                     const std::function<bool()>& stop) {
  std::lock_guard pass(pass_mutex_);
  for (const auto& directory : directories()) directory->Refresh();
  Goal goal;
  goal.dry_run = request.dry_run;
  const uint64_t used = used_bytes();
  if (used > request.keep_bytes) goal.bytes = used - request.keep_bytes;
  if (request.unused_for_ms > 0) {
    goal.unused_since_ms = clock_.WallNanos() / 1'000'000 - request.unused_for_ms;
  }
  RecordUses();
  Pass(goal, stop);
  for (const auto& directory : directories()) directory->Refresh();
  PruneReport report;
  report.freed_bytes = goal.freed;
  report.kept_bytes = request.dry_run ? used - std::min(used, goal.freed) : used_bytes();
  report.blobs_touched = goal.blobs.size();
  if (stop()) return CancelledError("nobody waits for the answer any more");
  return report;
}

Status NodeCache::Verify(const std::vector<BlobId>& blobs,
                         const std::function<bool(const VerifiedBlob&)>& each,
                         const std::function<bool()>& stop) {
  std::vector<BlobId> ids = blobs;
  if (ids.empty()) {
    for (const Present& one : ListPresent()) ids.push_back(one.blob.id);
  }
  for (const BlobId& id : ids) {
    if (stop()) return CancelledError("nobody waits for the answer any more");
    VerifiedBlob out;
    out.id = id;
    Result<std::shared_ptr<CacheFile>> file = FileOf(id);
    std::shared_ptr<BlobCopy> copy = file.ok() ? (*file)->copy() : nullptr;
    if (!file.ok()) {
      out.error = file.status().ToString();
    } else if (copy == nullptr) {
      out.error = "nothing of it is here";
    } else {
      Result<BlobCopy::Verified> verified = copy->Verify(stop);
      if (verified.ok()) {
        out.chunks_checked = verified->checked;
        out.chunks_dropped = verified->wrong;
      } else {
        out.error = verified.status().ToString();
      }
      if (copy->lost()) {
        Status dropped = (*file)->Drop(copy);
        if (!dropped.ok()) out.error = dropped.ToString();
      }
    }
    if (!each(out)) break;
  }
  return OkStatus();
}

}  // namespace esker
