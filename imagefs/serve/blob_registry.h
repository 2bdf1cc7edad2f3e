// BlobRegistry: the blobs that a server has in memory, found by name or by node id.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "node_cache.h"
#include "served_blob.h"

namespace esker {

// The node id of a blob: the first 8 bytes of its id, big-endian.
uint64_t NodeOf(const BlobId& id);

// Thread-safe. Loads on demand from the map directory; forgets what was used longest ago beyond its
// bounds. Lock order: a slot's mutex, then the registry's, then a blob's.
class BlobRegistry {
 public:
  struct Limits {
    size_t blobs = 2048;               // two descriptors each
    size_t memory_bytes = 256u << 20;  // of maps; one larger blob alone is allowed
  };
  // `counters` counts what happens with all blobs together.
  BlobRegistry(NodeCache& cache, Counters& counters, Limits limits)
      : cache_(cache), counters_(counters), limits_(limits) {}
  BlobRegistry(NodeCache& cache, Counters& counters) : BlobRegistry(cache, counters, Limits()) {}

  // NOT_FOUND: there is no map of that blob here. DATA_LOSS: the map is damaged.
  Result<std::shared_ptr<ServedBlob>> Find(const BlobId& id);
  // Looks through the directory when the node is not in memory. FAILED_PRECONDITION: two blobs here
  // share the node id.
  Result<std::shared_ptr<ServedBlob>> FindNode(uint64_t node);
  // Those in memory.
  std::vector<std::shared_ptr<ServedBlob>> Loaded() const;
  // Of all maps in the directory.
  std::vector<BlobId> List() const { return cache_.ListMaps(); }

 private:
  struct Slot {
    std::mutex mutex;                  // held while loading: one load per node
    std::shared_ptr<ServedBlob> blob;  // guarded by mutex
  };
  struct Known {
    std::shared_ptr<Slot> slot;
    size_t memory_bytes = 0;
    std::list<uint64_t>::iterator position;
  };
  std::shared_ptr<Slot> SlotOf(uint64_t node);
  void Account(uint64_t node, size_t memory_bytes);

  NodeCache& cache_;
  Counters& counters_;
  const Limits limits_;
  mutable std::mutex mutex_;  // guards what follows
  std::map<uint64_t, Known> known_;
  std::list<uint64_t> recent_;  // front: used last
  size_t memory_bytes_ = 0;
};

}  // namespace esker
