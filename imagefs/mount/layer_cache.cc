#include "imagefs/layer_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/io.h"
#include "base/log.h"
#include "imagefs/cache_layout.h"
#include "metadata_fetch.h"
#include "metadata_record.h"

namespace esker {
namespace {

constexpr std::string_view kUnfinishedSuffix = ".new";
constexpr size_t kParallelLayers = 8;
constexpr size_t kMaxMapBytes = 256u << 20;
// The blob server notices a full disk within a second, and makes room.
constexpr int kFullTries = 20;
constexpr auto kFullPause = std::chrono::milliseconds(250);
// How often a layer that is prepared again and again is noted as used.
constexpr int64_t kNoteUseSeconds = 30;

bool IsFull(const Status& status) {
  return status.error_number() == ENOSPC || status.error_number() == EDQUOT;
}

// Trouble with the disk here rather than with the store.
bool IsLocal(const Status& status) {
  return IsFull(status) || status.error_number() == EROFS || status.error_number() == ENOENT;
}

uint64_t FreeBytes(const CacheLayout& cache) {
  struct statvfs space;
  if (::statvfs(cache.root.c_str(), &space) != 0 || (space.f_flag & ST_RDONLY) != 0) return 0;
  return space.f_bavail * space.f_frsize;
}

class DirectoryLayerCache : public LayerCache {
 public:
  DirectoryLayerCache(CacheLayout home, std::vector<CacheLayout> caches, Store& store,
                      MapSource maps)
      : home_(std::move(home)), caches_(std::move(caches)), store_(store), maps_(std::move(maps)) {}

  Result<LocalLayer> Ensure(const ImageLayer& layer) override;
  Result<std::vector<LocalLayer>> EnsureAll(const std::vector<ImageLayer>& layers,
                                            const std::function<void()>& maps_ready) override;
  bool IsComplete(const ImageLayer& layer) const override { return FindComplete(layer) != nullptr; }
  Status RefreshMap(const BlobId& id) override;
  Status Retain(const std::vector<ImageLayer>& live) override;
  Result<uint64_t> TrimMetadata(uint64_t keep_bytes,
                                const std::vector<ImageLayer>& in_use) override;
  void RemoveUnfinished();

 private:
  // Single flight per metadata image, and the data blobs that this process has seen to with it.
  struct Entry {
    std::mutex mutex;
    std::set<BlobId> ready, mapped;            // guarded by mutex
    const CacheLayout* metadata_in = nullptr;  // guarded by mutex
  };

  std::shared_ptr<Entry> EntryOf(const ImageLayer& layer);
  bool IsReady(const ImageLayer& layer);
  // Of an entry whose mutex is held.
  bool IsReady(const ImageLayer& layer, const Entry& entry) const;
  Status PrepareMap(const ImageLayer& layer);
  Status EnsureMetadata(const ImageLayer& layer, Entry& entry);
  Result<MetadataRecord> FindMetadata(const BlobId& id, Entry& entry) const;
  Result<MetadataRecord> FetchSomewhere(const ImageLayer& layer, Entry& entry);
  Status EnsureMap(const BlobId& id, uint64_t size_bytes);
  Status AwaitPacks(const BlobMap& map) const;
  Status WriteMap(const BlobMap& map);
  LocalLayer Describe(const ImageLayer& layer, const Entry& entry) const;
  // The directory that has the whole data blob.
  const CacheLayout* FindComplete(const ImageLayer& layer) const;
  void NoteUse(const BlobId& id) const;

  const CacheLayout home_;
  const std::vector<CacheLayout> caches_;
  Store& store_;
  const MapSource maps_;
  std::mutex mutex_;  // guards entries_; never held while waiting for an entry's
  std::map<BlobId, std::shared_ptr<Entry>> entries_;
  std::mutex write_mutex_;  // one writer of map files; innermost
};

std::shared_ptr<DirectoryLayerCache::Entry> DirectoryLayerCache::EntryOf(const ImageLayer& layer) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Entry>& slot = entries_[layer.metadata];
  if (slot == nullptr) slot = std::make_shared<Entry>();
  return slot;
}

Result<LocalLayer> DirectoryLayerCache::Ensure(const ImageLayer& layer) {
  std::shared_ptr<Entry> entry = EntryOf(layer);
  std::lock_guard flight(entry->mutex);
  if (!IsReady(layer, *entry)) {
    ESKER_RETURN_IF_ERROR(
        EnsureMetadata(layer, *entry).Wrap("metadata of layer " + layer.metadata.ToHex()));
    if (layer.has_data() && !entry->mapped.contains(layer.data)) {
      ESKER_RETURN_IF_ERROR(
          EnsureMap(layer.data, layer.data_bytes).Wrap("data of layer " + layer.metadata.ToHex()));
    }
    entry->ready.insert(layer.data);
    entry->mapped.erase(layer.data);
  }
  if (layer.has_data()) NoteUse(layer.data);
  return Describe(layer, *entry);
}

bool DirectoryLayerCache::IsReady(const ImageLayer& layer, const Entry& entry) const {
  return entry.ready.contains(layer.data) && entry.metadata_in != nullptr &&
         PathExists(entry.metadata_in->MetaPath(layer.metadata)) &&
         (!layer.has_data() || PathExists(home_.MapPath(layer.data)));
}

bool DirectoryLayerCache::IsReady(const ImageLayer& layer) {
  std::shared_ptr<Entry> entry = EntryOf(layer);
  std::unique_lock flight(entry->mutex, std::try_to_lock);
  return flight.owns_lock() && IsReady(layer, *entry);
}

Status DirectoryLayerCache::PrepareMap(const ImageLayer& layer) {
  std::shared_ptr<Entry> entry = EntryOf(layer);
  std::lock_guard flight(entry->mutex);
  if (IsReady(layer, *entry)) return OkStatus();
  ESKER_RETURN_IF_ERROR(
      EnsureMap(layer.data, layer.data_bytes).Wrap("data of layer " + layer.metadata.ToHex()));
  entry->mapped.insert(layer.data);
  return OkStatus();
}

// Runs `work` for each index on up to kParallelLayers threads; the first failure in order.
Status ForEachLayer(size_t count, const std::function<Status(size_t)>& work) {
  std::vector<Status> outcomes(count);
  std::atomic<size_t> next{0};
  auto run = [&] {
    for (size_t i = next++; i < count; i = next++) outcomes[i] = work(i);
  };
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < std::min(count, kParallelLayers); ++i) helpers.emplace_back(run);
  run();
  for (std::thread& helper : helpers) helper.join();
  for (Status& outcome : outcomes) ESKER_RETURN_IF_ERROR(std::move(outcome));
  return OkStatus();
}

Result<std::vector<LocalLayer>> DirectoryLayerCache::EnsureAll(
    const std::vector<ImageLayer>& layers, const std::function<void()>& maps_ready) {
  std::vector<size_t> missing, without_map;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (IsReady(layers[i])) continue;
    missing.push_back(i);
    if (layers[i].has_data()) without_map.push_back(i);
  }
  ESKER_RETURN_IF_ERROR(ForEachLayer(without_map.size(),
                                     [&](size_t i) { return PrepareMap(layers[without_map[i]]); }));
  maps_ready();
  ESKER_RETURN_IF_ERROR(
      ForEachLayer(missing.size(), [&](size_t i) { return Ensure(layers[missing[i]]).status(); }));
  std::vector<LocalLayer> local;
  for (const ImageLayer& layer : layers) {
    ESKER_ASSIGN_OR_RETURN(LocalLayer one, Ensure(layer));
    local.push_back(std::move(one));
  }
  return local;
}

Status DirectoryLayerCache::EnsureMetadata(const ImageLayer& layer, Entry& entry) {
  Result<MetadataRecord> record = FindMetadata(layer.metadata, entry);
  for (int i = 0; !record.ok(); ++i) {
    record = FetchSomewhere(layer, entry);
    if (record.ok()) break;
    if (!IsFull(record.status()) || i == kFullTries) return record.status();
    std::this_thread::sleep_for(kFullPause);
  }
  // The record tells what was validated; another manifest may pair the same metadata with less
  // data, or claim another size.
  if (record->metadata_bytes != layer.metadata_bytes) {
    return DataLossError("the manifest says " + std::to_string(layer.metadata_bytes) +
                         " bytes, the blob has " + std::to_string(record->metadata_bytes));
  }
  if (record->data_device_bytes > layer.data_bytes) {
    return DataLossError("the file system needs a data device of " +
                         std::to_string(record->data_device_bytes) + " bytes, the layer has " +
                         std::to_string(layer.data_bytes));
  }
  return OkStatus();
}

Result<MetadataRecord> DirectoryLayerCache::FindMetadata(const BlobId& id, Entry& entry) const {
  for (const CacheLayout& cache : caches_) {
    Result<MetadataRecord> record = LoadMetadataRecord(cache, id);
    if (!record.ok()) continue;
    entry.metadata_in = &cache;
    return record;
  }
  return NotFoundError("not here");
}

// In the directory with the most room; in the next one if that fails for a reason of its own.
Result<MetadataRecord> DirectoryLayerCache::FetchSomewhere(const ImageLayer& layer, Entry& entry) {
  std::vector<const CacheLayout*> order;
  for (const CacheLayout& cache : caches_) order.push_back(&cache);
  if (order.size() > 1) {
    std::map<const CacheLayout*, uint64_t> room;
    for (const CacheLayout* cache : order) room[cache] = FreeBytes(*cache);
    std::stable_sort(order.begin(), order.end(),
                     [&](const auto* a, const auto* b) { return room[a] > room[b]; });
  }
  Status first_error;
  for (const CacheLayout* cache : order) {
    Status made = cache->MakeDirectories();
    Result<MetadataRecord> record =
        made.ok() ? FetchMetadata(*cache, store_, maps_, layer) : Result<MetadataRecord>(made);
    if (record.ok()) {
      entry.metadata_in = cache;
      return record;
    }
    if (first_error.ok()) first_error = record.status();
    if (made.ok() && !IsLocal(record.status())) break;
  }
  return first_error;
}

Status DirectoryLayerCache::EnsureMap(const BlobId& id, uint64_t size_bytes) {
  ESKER_ASSIGN_OR_RETURN(BlobMap map, maps_(id));
  if (map.id != id) {
    return DataLossError("the map that came is of blob " + map.id.ToHex());
  }
  if (map.size_bytes != AlignToBlock(size_bytes)) {
    return DataLossError("the manifest says " + std::to_string(size_bytes) +
                         " bytes, the blob has " + std::to_string(map.size_bytes));
  }
  // Before its first use here: later, a read that meets a name that is not visible yet would have
  // less time to wait for it.
  if (!PathExists(home_.MapPath(id))) ESKER_RETURN_IF_ERROR(AwaitPacks(map));
  for (int i = 0;; ++i) {
    Status written = WriteMap(map);
    if (written.ok() || !IsFull(written) || i == kFullTries) return written;
    std::this_thread::sleep_for(kFullPause);
  }
}

// Other trouble of the store than a missing name is for the reads to wait out.
Status DirectoryLayerCache::AwaitPacks(const BlobMap& map) const {
  const int64_t deadline = Clock::System().MonotonicNanos() + kVisibilityNanos;
  std::set<PackId> packs;
  for (const BlobMap::Entry& entry : map.entries) {
    if (!packs.insert(entry.location.pack).second) continue;
    Status seen = store_.AwaitPack(entry.location.pack, deadline).status();
    if (seen.code() == Code::kNotFound) return seen;
  }
  return OkStatus();
}

Status DirectoryLayerCache::WriteMap(const BlobMap& map) {
  const std::string path = home_.MapPath(map.id);
  std::lock_guard lock(write_mutex_);
  if (Result<std::string> found = ReadFileToString(path, kMaxMapBytes); found.ok()) {
    Result<BlobMap> present = BlobMap::Parse(*found);
    if (present.ok() && present->id == map.id && present->generation >= map.generation) {
      return OkStatus();
    }
  }
  ESKER_FAILPOINT("imagefs.cache.write_map");
  return ReplaceFileDurably(path, map.Serialise());
}

// The map's time says so, to the eviction and to TrimMetadata.
void DirectoryLayerCache::NoteUse(const BlobId& id) const {
  const std::string path = home_.MapPath(id);
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return;
  if (Clock::System().WallNanos() / 1'000'000'000 - status.st_mtim.tv_sec < kNoteUseSeconds) return;
  (void)::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // a hint
}

Status DirectoryLayerCache::RefreshMap(const BlobId& id) {
  ESKER_ASSIGN_OR_RETURN(BlobMap map, maps_(id));
  if (map.id != id) return DataLossError("the map that came is of blob " + map.id.ToHex());
  return WriteMap(map);
}

LocalLayer DirectoryLayerCache::Describe(const ImageLayer& layer, const Entry& entry) const {
  LocalLayer local;
  local.metadata_path = entry.metadata_in->MetaPath(layer.metadata);
  if (!layer.has_data()) return local;
  local.data_blob = layer.data.ToHex();
  local.data_bytes = layer.data_bytes;
  if (const CacheLayout* cache = FindComplete(layer); cache != nullptr) {
    local.data_complete = true;
    local.data_path = cache->FullPath(layer.data);
  }
  return local;
}

const CacheLayout* DirectoryLayerCache::FindComplete(const ImageLayer& layer) const {
  for (const CacheLayout& cache : caches_) {
    if (IsBlobComplete(cache, layer.data, AlignToBlock(layer.data_bytes))) return &cache;
  }
  return nullptr;
}

// --- dropping -----------------------------------------------------------------------------------

constexpr size_t kHexDigits = 64;

// Removes the files of a directory whose names do not start with a live id.
Status RetainFiles(const std::string& directory, const std::set<std::string>& live) {
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(directory));
  Status first_error;
  for (const std::string& name : names) {
    // Unfinished images belong to a fetch under way.
    if (live.contains(name.substr(0, kHexDigits)) || name.ends_with(kUnfinishedSuffix)) continue;
    if (::unlink((directory + "/" + name).c_str()) == 0 || errno == ENOENT) continue;
    Status failed = ErrnoError("remove " + directory + "/" + name);
    if (first_error.ok()) first_error = failed;
  }
  return first_error;
}

Status DirectoryLayerCache::Retain(const std::vector<ImageLayer>& live) {
  std::set<std::string> metadata, data;
  for (const ImageLayer& layer : live) {
    metadata.insert(layer.metadata.ToHex());
    if (layer.has_data()) data.insert(layer.data.ToHex());
  }
  std::lock_guard lock(mutex_);
  std::lock_guard writing(write_mutex_);
  std::erase_if(entries_,
                [&](const auto& entry) { return !metadata.contains(entry.first.ToHex()); });
  Status status = RetainFiles(home_.MapDirectory(), data);
  for (const CacheLayout& cache : caches_) {
    Status kept_metadata = RetainFiles(cache.MetaDirectory(), metadata);
    Status kept_data = RetainFiles(cache.DataDirectory(), data);
    if (status.ok()) status = kept_metadata.ok() ? kept_data : kept_metadata;
  }
  return status;
}

struct OldFile {
  timespec used;
  uint64_t bytes = 0;
  std::string id, path;
};

// Adds the files of a directory and returns the blocks of all of them.
uint64_t AddFiles(const std::string& directory, std::vector<OldFile>* out) {
  Result<std::vector<std::string>> names = ListDirectory(directory);
  if (!names.ok()) return 0;
  uint64_t bytes = 0;
  for (const std::string& name : *names) {
    const std::string path = directory + "/" + name;
    struct stat status;
    if (::lstat(path.c_str(), &status) != 0) continue;
    const uint64_t blocks = static_cast<uint64_t>(status.st_blocks) * 512;
    bytes += blocks;
    if (name.ends_with(kUnfinishedSuffix)) continue;
    // A metadata image is read by its mounts, a map's time is set when a mount is prepared.
    const bool read_later = std::tie(status.st_atim.tv_sec, status.st_atim.tv_nsec) >
                            std::tie(status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
    out->push_back(
        {read_later ? status.st_atim : status.st_mtim, blocks, name.substr(0, kHexDigits), path});
  }
  return bytes;
}

Result<uint64_t> DirectoryLayerCache::TrimMetadata(uint64_t keep_bytes,
                                                   const std::vector<ImageLayer>& in_use) {
  std::set<std::string> keep;
  for (const ImageLayer& layer : in_use) {
    keep.insert(layer.metadata.ToHex());
    keep.insert(layer.data.ToHex());
  }
  std::lock_guard lock(mutex_);
  std::lock_guard writing(write_mutex_);
  std::vector<OldFile> files;
  uint64_t bytes = AddFiles(home_.MapDirectory(), &files);
  for (const CacheLayout& cache : caches_) bytes += AddFiles(cache.MetaDirectory(), &files);
  std::stable_sort(files.begin(), files.end(), [](const OldFile& a, const OldFile& b) {
    return std::tie(a.used.tv_sec, a.used.tv_nsec) < std::tie(b.used.tv_sec, b.used.tv_nsec);
  });
  for (const OldFile& file : files) {
    if (bytes <= keep_bytes) break;
    if (keep.contains(file.id)) continue;
    if (::unlink(file.path.c_str()) != 0 && errno != ENOENT)
      return ErrnoError("remove " + file.path);
    bytes -= std::min(bytes, file.bytes);
  }
  return bytes;
}

void DirectoryLayerCache::RemoveUnfinished() {
  for (const CacheLayout& cache : caches_) {
    Result<std::vector<std::string>> names = ListDirectory(cache.MetaDirectory());
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      if (!name.ends_with(kUnfinishedSuffix)) continue;
      const std::string path = cache.MetaDirectory() + "/" + name;
      if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
        LogWarning("cache-file-not-removed", {{"path", path}});
      }
    }
  }
}

}  // namespace

Result<std::unique_ptr<LayerCache>> LayerCache::Open(const std::string& home,
                                                     const CacheSettings& settings, Store& store,
                                                     MapSource maps) {
  ESKER_RETURN_IF_ERROR(CacheLayout{home}.MakeDirectories());
  ESKER_RETURN_IF_ERROR(SaveCacheSettings(home, settings));
  std::vector<CacheLayout> caches;
  for (const std::string& directory : settings.directories) {
    caches.push_back({directory});
    Status made = caches.back().MakeDirectories();
    if (made.ok()) continue;
    LogWarning("cache-directory-not-used", {{"directory", directory}, {"error", made.ToString()}});
  }
  if (caches.empty()) caches.push_back({home});
  auto cache = std::make_unique<DirectoryLayerCache>(CacheLayout{home}, std::move(caches), store,
                                                     std::move(maps));
  cache->RemoveUnfinished();
  return std::unique_ptr<LayerCache>(std::move(cache));
}

}  // namespace esker
