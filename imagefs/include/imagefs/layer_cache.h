// LayerCache: brings layers to this node so that they can be mounted. docs/formats/cache.md.
//
// In each directory of the cache:
//   meta/<blob id>.erofs     complete, verified, validated metadata images
//   meta/<blob id>.valid     what each was validated against
//   map/<blob id>.map        BlobMap of a data blob: what the blob server serves
//   data/<blob id>.part      sparse file with the blob's plain bytes as far as they are here
//   data/<blob id>.presence  which chunks that may be (proved by digest before use)
//   data/<blob id>.full      the whole blob, synced and verified: mounted without FUSE
// The node (this class) writes meta/ and map/; the blob server alone writes data/. Maps lie in the
// cache's home.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "imagefs/blob_map.h"
#include "imagefs/cache_layout.h"
#include "imagefs/manifest.h"
#include "imagefs/store.h"

namespace esker {

struct LocalLayer {
  std::string metadata_path;   // absolute; a complete EROFS metadata image
  std::string data_blob;       // hex id, "" when the layer has no data
  bool data_complete = false;  // then data_path can be mounted without FUSE
  std::string data_path;       // absolute path of the complete cache file when data_complete
  uint64_t data_bytes = 0;
};

class LayerCache {
 public:
  using MapSource = std::function<Result<BlobMap>(const BlobId&)>;

  // Makes the directories, and tells the blob server of them and of the budget (it notices within a
  // second). A directory that cannot be used is left out while that is so; the home must be usable.
  // `store` must outlive the cache.
  static Result<std::unique_ptr<LayerCache>> Open(const std::string& home,
                                                  const CacheSettings& settings, Store& store,
                                                  MapSource maps);
  // One directory, and half of its file system.
  static Result<std::unique_ptr<LayerCache>> Open(const std::string& directory, Store& store,
                                                  MapSource maps) {
    return Open(directory, CacheSettings(), store, std::move(maps));
  }
  virtual ~LayerCache() = default;

  // Fetches and validates the metadata (single flight per layer) and writes the data blob's map.
  // Waits for a while when the disks are full, since the blob server then makes room. What it
  // returns may be evicted before it is mounted: NOT_FOUND then means to ask again. Thread-safe.
  // Errors: DATA_LOSS (store gave wrong bytes, or the validator refused), NOT_FOUND.
  virtual Result<LocalLayer> Ensure(const ImageLayer& layer) = 0;
  // All layers of an image, side by side, in their order. Calls `maps_ready` as soon as every data
  // blob's map is here (and so can be prefetched), before the metadata has come.
  virtual Result<std::vector<LocalLayer>> EnsureAll(const std::vector<ImageLayer>& layers,
                                                    const std::function<void()>& maps_ready) = 0;
  // Whether all of the layer's data is on this node.
  virtual bool IsComplete(const ImageLayer& layer) const = 0;
  // Asks the source for the blob's map again and writes it if its chunks were moved since; the blob
  // server picks it up when it next misses a pack.
  virtual Status RefreshMap(const BlobId& id) = 0;
  // Drops files of layers that are in no list given (after garbage collection). What is
  // mounted keeps its open files.
  virtual Status Retain(const std::vector<ImageLayer>& live) = 0;
  // Drops metadata and maps, those prepared longest ago first, until at most `keep_bytes` of them
  // are here; never those of `in_use`, nor what is being prepared. Returns the bytes that are left.
  virtual Result<uint64_t> TrimMetadata(uint64_t keep_bytes,
                                        const std::vector<ImageLayer>& in_use) = 0;
};

}  // namespace esker
