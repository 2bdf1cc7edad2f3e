#include "imagefs/layer_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <set>

#include "base/failpoint.h"
#include "base/io.h"
#include "base/log.h"
#include "imagefs/cache_layout.h"
#include "metadata_fetch.h"
#include "metadata_record.h"

namespace esker {
namespace {

constexpr std::string_view kUnfinishedSuffix = ".new";

class DirectoryLayerCache : public LayerCache {
 public:
  DirectoryLayerCache(CacheLayout cache, Store& store, MapSource maps)
      : cache_(std::move(cache)), store_(store), maps_(std::move(maps)) {}

  Result<LocalLayer> Ensure(const ImageLayer& layer) override;
  Status RefreshMap(const BlobId& id) override;
  Status Retain(const std::vector<ImageLayer>& live) override;
  Status RemoveUnfinished();

 private:
  // Single flight per metadata image, and the data blobs that this process has seen to with it.
  struct Entry {
    std::mutex mutex;
    std::set<BlobId> ready;  // guarded by mutex
  };

  Status EnsureMetadata(const ImageLayer& layer);
  Status EnsureMap(const BlobId& id, uint64_t size_bytes);
  Status WriteMap(const BlobMap& map);
  Result<LocalLayer> Describe(const ImageLayer& layer) const;

  const CacheLayout cache_;
  Store& store_;
  const MapSource maps_;
  std::mutex mutex_;  // guards entries_; never held while waiting for an entry's
  std::map<BlobId, std::shared_ptr<Entry>> entries_;
  std::mutex write_mutex_;  // one writer of map files; innermost
};

Result<LocalLayer> DirectoryLayerCache::Ensure(const ImageLayer& layer) {
  std::shared_ptr<Entry> entry;
  {
    std::lock_guard lock(mutex_);
    std::shared_ptr<Entry>& slot = entries_[layer.metadata];
    if (slot == nullptr) slot = std::make_shared<Entry>();
    entry = slot;
  }
  std::lock_guard flight(entry->mutex);
  if (!entry->ready.contains(layer.data) || !PathExists(cache_.MetaPath(layer.metadata))) {
    ESKER_RETURN_IF_ERROR(
        EnsureMetadata(layer).Wrap("metadata of layer " + layer.metadata.ToHex()));
    if (layer.has_data()) {
      ESKER_RETURN_IF_ERROR(
          EnsureMap(layer.data, layer.data_bytes).Wrap("data of layer " + layer.metadata.ToHex()));
    }
    entry->ready.insert(layer.data);
  }
  return Describe(layer);
}

Status DirectoryLayerCache::EnsureMetadata(const ImageLayer& layer) {
  Result<MetadataRecord> record = LoadMetadataRecord(cache_, layer.metadata);
  if (!record.ok()) {
    ESKER_ASSIGN_OR_RETURN(record, FetchMetadata(cache_, store_, maps_, layer));
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

Status DirectoryLayerCache::EnsureMap(const BlobId& id, uint64_t size_bytes) {
  ESKER_ASSIGN_OR_RETURN(BlobMap map, maps_(id));
  if (map.id != id) {
    return DataLossError("the map that came is of blob " + map.id.ToHex());
  }
  if (map.size_bytes != AlignToBlock(size_bytes)) {
    return DataLossError("the manifest says " + std::to_string(size_bytes) +
                         " bytes, the blob has " + std::to_string(map.size_bytes));
  }
  return WriteMap(map);
}

Status DirectoryLayerCache::WriteMap(const BlobMap& map) {
  const std::string path = cache_.MapPath(map.id);
  std::lock_guard lock(write_mutex_);
  if (Result<std::string> found = ReadFileToString(path, 256u << 20); found.ok()) {
    Result<BlobMap> present = BlobMap::Parse(*found);
    if (present.ok() && present->id == map.id && present->generation >= map.generation) {
      return OkStatus();
    }
  }
  ESKER_FAILPOINT("imagefs.cache.write_map");
  return ReplaceFileDurably(path, map.Serialise());
}

Status DirectoryLayerCache::RefreshMap(const BlobId& id) {
  ESKER_ASSIGN_OR_RETURN(BlobMap map, maps_(id));
  if (map.id != id) return DataLossError("the map that came is of blob " + map.id.ToHex());
  return WriteMap(map);
}

Result<LocalLayer> DirectoryLayerCache::Describe(const ImageLayer& layer) const {
  LocalLayer local;
  local.metadata_path = cache_.MetaPath(layer.metadata);
  if (!layer.has_data()) return local;
  local.data_blob = layer.data.ToHex();
  local.data_bytes = layer.data_bytes;
  local.data_complete = IsBlobComplete(cache_, layer.data, AlignToBlock(layer.data_bytes));
  if (local.data_complete) local.data_path = cache_.DataPath(layer.data);
  return local;
}

// Removes the files of a directory whose names do not start with a live id.
Status RetainFiles(const std::string& directory, const std::set<std::string>& live) {
  constexpr size_t kHexDigits = 64;
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
  // What is mounted keeps its open files; only the names go.
  Status status = RetainFiles(cache_.MetaDirectory(), metadata);
  for (const std::string& directory : {cache_.MapDirectory(), cache_.DataDirectory()}) {
    Status retained = RetainFiles(directory, data);
    if (status.ok()) status = retained;
  }
  return status;
}

Status DirectoryLayerCache::RemoveUnfinished() {
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(cache_.MetaDirectory()));
  for (const std::string& name : names) {
    if (!name.ends_with(kUnfinishedSuffix)) continue;
    const std::string path = cache_.MetaDirectory() + "/" + name;
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoError("remove " + path);
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<LayerCache>> LayerCache::Open(const std::string& directory, Store& store,
                                                     MapSource maps) {
  CacheLayout layout{directory};
  ESKER_RETURN_IF_ERROR(layout.MakeDirectories());
  auto cache = std::make_unique<DirectoryLayerCache>(layout, store, std::move(maps));
  ESKER_RETURN_IF_ERROR(cache->RemoveUnfinished());
  return std::unique_ptr<LayerCache>(std::move(cache));
}

}  // namespace esker
