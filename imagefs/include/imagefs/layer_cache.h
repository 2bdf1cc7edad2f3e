// LayerCache: brings layers to this node so that they can be mounted. docs/formats/cache.md.
//
// DATA/cache/
//   meta/<blob id>.erofs     complete, verified, validated metadata images
//   meta/<blob id>.valid     what each was validated against
//   map/<blob id>.map        BlobMap of a data blob: what the blob server serves
//   data/<blob id>.data      sparse file with the blob's plain bytes as far as they are here
//   data/<blob id>.presence  which chunks that may be (proved by digest before use)
//   data/<blob id>.complete  it is the whole blob, synced and verified: mounted without FUSE
// The node (this class) writes meta/ and map/; the blob server alone writes data/.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "imagefs/blob_map.h"
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

  // Makes the directories. `store` must outlive the cache.
  static Result<std::unique_ptr<LayerCache>> Open(const std::string& directory, Store& store,
                                                  MapSource maps);
  virtual ~LayerCache() = default;

  // Fetches and validates the metadata (single flight per layer) and writes the data blob's map.
  // Thread-safe. Errors: DATA_LOSS (store gave wrong bytes, or the validator refused), NOT_FOUND.
  virtual Result<LocalLayer> Ensure(const ImageLayer& layer) = 0;
  // Asks the source for the blob's map again and writes it if its chunks were moved since; the blob
  // server picks it up when it next misses a pack.
  virtual Status RefreshMap(const BlobId& id) = 0;
  // Drops files of layers that are in no list given (after garbage collection).
  virtual Status Retain(const std::vector<ImageLayer>& live) = 0;
};

}  // namespace esker
