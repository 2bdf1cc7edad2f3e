#include "node_cache.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>

#include "base/io.h"
#include "base/log.h"

namespace esker {
namespace {

constexpr size_t kMaxMapBytes = 256u << 20;
constexpr auto kLook = std::chrono::seconds(1);
constexpr auto kBreath = std::chrono::milliseconds(20);
constexpr int64_t kRecordUsesNanos = 60'000'000'000;
constexpr std::string_view kMapSuffix = ".map";

}  // namespace

NodeCache::NodeCache(std::string home, const Clock& clock) : home_{std::move(home)}, clock_(clock) {
  settings_.directories = {home_.root};
  LookAround();
  thread_ = std::thread([this] { Run(); });
}

NodeCache::~NodeCache() { Stop(); }

void NodeCache::Unlock() {
  Stop();
  std::lock_guard pass(pass_mutex_);
  for (const std::shared_ptr<CacheDirectory>& directory : directories()) directory->Unlock();
}

void NodeCache::Stop() {
  {
    std::lock_guard lock(wake_mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void NodeCache::Wake() {
  {
    std::lock_guard lock(wake_mutex_);
    if (woken_) return;
    woken_ = true;
  }
  wake_.notify_all();
}

void NodeCache::Run() {
  int64_t uses_recorded = clock_.MonotonicNanos();
  std::unique_lock lock(wake_mutex_);
  while (!stopping_) {
    woken_ = false;
    lock.unlock();
    LookAround();
    if (OverHighWater()) EvictToLowWater();
    if (const int64_t now = clock_.MonotonicNanos(); now - uses_recorded > kRecordUsesNanos) {
      uses_recorded = now;
      RecordUses();
      std::lock_guard pass(pass_mutex_);
      for (const auto& directory : directories()) directory->Refresh();
    }
    lock.lock();
    // Those who find no room wake us all the time.
    wake_.wait_for(lock, kBreath, [this] { return stopping_; });
    wake_.wait_for(lock, kLook, [this] { return stopping_ || woken_; });
  }
}

// --- directories and budget ---------------------------------------------------------------------

void NodeCache::LookAround() {
  struct stat status;
  const int64_t change = ::stat(home_.SettingsPath().c_str(), &status) != 0
                             ? -1
                             : status.st_ctim.tv_sec * 1'000'000'000 + status.st_ctim.tv_nsec;
  std::lock_guard lock(mutex_);
  if (change != -1 && change != settings_change_) {
    settings_ = LoadCacheSettings(home_.root);
    settings_change_ = change;
  }
  Directories next;
  for (const std::string& root : settings_.directories) {
    auto known = std::find_if(directories_.begin(), directories_.end(),
                              [&](const auto& d) { return d->layout().root == root; });
    if (known != directories_.end()) {
      (*known)->Look();
      if ((*known)->Present()) {
        next.push_back(*known);
        continue;
      }
    }
    Result<std::shared_ptr<CacheDirectory>> opened = CacheDirectory::Open(root, clock_);
    std::string& said = said_[root];
    const std::string why = opened.ok() ? "" : opened.status().ToString();
    if (opened.ok()) next.push_back(std::move(*opened));
    if (!why.empty() && why != said) {
      LogWarning("cache-directory-not-used", {{"directory", root}, {"error", why}});
    }
    said = why;
  }
  for (const auto& old : directories_) {
    if (std::find(next.begin(), next.end(), old) == next.end()) old->Leave();
  }
  directories_ = std::move(next);
  std::map<uint64_t, uint64_t> file_systems;
  bool writable = false;
  for (const auto& directory : directories_) {
    file_systems[directory->device()] = directory->file_system_bytes();
    writable = writable || directory->Writable();
  }
  uint64_t half = 0;
  for (const auto& [device, bytes] : file_systems) half += bytes / 2;
  budget_ = settings_.budget_bytes.value_or(half);
  limit_ = budget_.load() / 50 * 49;
  writable_ = writable;
}

NodeCache::Directories NodeCache::directories() const {
  std::lock_guard lock(mutex_);
  return directories_;
}

uint64_t NodeCache::used_bytes() const {
  std::lock_guard lock(mutex_);
  uint64_t used = 0;
  for (const auto& directory : directories_) used += directory->used_bytes();
  return used;
}

bool NodeCache::HasRoom() const { return writable_.load() && used_bytes() < limit_.load(); }

bool NodeCache::Reserve(CacheDirectory& directory, uint64_t bytes) {
  bool fits = false, wake = false;
  {
    std::lock_guard lock(mutex_);
    uint64_t used = bytes;
    for (const auto& each : directories_) used += each->used_bytes();
    fits = used <= limit_.load() && directory.Writable() &&
           directory.used_bytes() + bytes <= directory.room_limit();
    if (fits) directory.Charge(bytes);
    wake = !fits || used > budget_.load() / 20 * 19;
  }
  if (wake) Wake();
  return fits;
}

std::shared_ptr<BlobCopy> NodeCache::FindCopy(const std::shared_ptr<const BlobLayout>& layout) {
  std::vector<std::shared_ptr<BlobCopy>> found;
  for (const auto& directory : directories()) {
    Result<std::shared_ptr<BlobCopy>> copy = BlobCopy::Open(directory, layout, clock_);
    if (copy.ok()) found.push_back(std::move(*copy));
  }
  if (found.empty()) return nullptr;
  auto better = [](const auto& a, const auto& b) {
    return std::make_tuple(a->full(), a->LastUsedMs()) <
           std::make_tuple(b->full(), b->LastUsedMs());
  };
  auto best = std::max_element(found.begin(), found.end(), better);
  for (auto it = found.begin(); it != found.end(); ++it) {
    if (it == best) continue;
    Status retired = (*it)->Retire();
    if (!retired.ok()) (*it)->directory().ReportWriteError(retired);
  }
  return *best;
}

std::shared_ptr<BlobCopy> NodeCache::CreateCopy(const std::shared_ptr<const BlobLayout>& layout) {
  constexpr uint64_t kEmptyCopyBytes = 2 * kBlockSize;
  Directories candidates = directories();
  std::erase_if(candidates, [](const auto& directory) { return !directory->Writable(); });
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a->free_bytes() > b->free_bytes(); });
  for (const auto& directory : candidates) {
    if (!Reserve(*directory, kEmptyCopyBytes)) continue;
    Result<std::shared_ptr<BlobCopy>> copy = BlobCopy::Create(directory, layout, clock_);
    if (copy.ok()) {
      directory->Written(kEmptyCopyBytes);
      return *copy;
    }
    directory->NotWritten(kEmptyCopyBytes);
    directory->ReportWriteError(copy.status());
  }
  return nullptr;
}

// --- files and maps -----------------------------------------------------------------------------

std::shared_ptr<CacheFile> NodeCache::File(std::shared_ptr<const BlobLayout> layout) {
  std::lock_guard lock(files_mutex_);
  std::weak_ptr<CacheFile>& slot = files_[layout->map().id];
  std::shared_ptr<CacheFile> file = slot.lock();
  if (file != nullptr) return file;
  file = std::make_shared<CacheFile>(*this, std::move(layout));
  slot = file;
  if (files_.size() > files_swept_at_) {
    std::erase_if(files_, [](const auto& entry) { return entry.second.expired(); });
    files_swept_at_ = std::max<size_t>(1024, files_.size() * 2);
  }
  return file;
}

std::shared_ptr<CacheFile> NodeCache::KnownFile(const BlobId& id) const {
  std::lock_guard lock(files_mutex_);
  auto found = files_.find(id);
  return found == files_.end() ? nullptr : found->second.lock();
}

Result<std::shared_ptr<CacheFile>> NodeCache::FileOf(const BlobId& id) {
  if (std::shared_ptr<CacheFile> known = KnownFile(id)) return known;
  ESKER_ASSIGN_OR_RETURN(std::shared_ptr<const BlobLayout> layout, ReadLayout(id));
  return File(std::move(layout));
}

Result<std::shared_ptr<const BlobLayout>> NodeCache::ReadLayout(const BlobId& id) const {
  const std::string path = home_.MapPath(id);
  ESKER_ASSIGN_OR_RETURN(std::string bytes, ReadFileToString(path, kMaxMapBytes));
  Result<BlobMap> map = BlobMap::Parse(bytes);
  if (!map.ok()) return std::move(map).status().Wrap(path);
  if (map->id != id) return DataLossError(path + " is the map of blob " + map->id.ToHex());
  return std::make_shared<const BlobLayout>(std::move(*map));
}

std::vector<BlobId> NodeCache::ListMaps() const {
  std::vector<BlobId> ids;
  Result<std::vector<std::string>> names = ListDirectory(home_.MapDirectory());
  if (!names.ok()) return ids;
  for (std::string_view name : *names) {
    if (!name.ends_with(kMapSuffix)) continue;
    name.remove_suffix(kMapSuffix.size());
    if (Result<BlobId> id = BlobId::FromHex(name); id.ok()) ids.push_back(*id);
  }
  return ids;
}

}  // namespace esker
