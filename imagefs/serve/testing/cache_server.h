// One blob server's life without FUSE: cache, store, reader; for tests.
#pragma once

#include <memory>
#include <string>

#include "blob_reader.h"
#include "blob_registry.h"
#include "testing/blob_fixture.h"

namespace esker::testing {

// Everything in memory is new, the cache directory stays. One at a time per directory.
struct CacheServer {
  CacheServer(const std::string& directory, const std::string& store,
              const Clock& clock = Clock::System())
      : cache(directory, clock), registry(cache, counters), packs(store), reader(packs, counters) {}
  Result<std::string> Read(const BlobId& id, uint64_t offset, size_t size,
                           int64_t deadline_ms = 5000) {
    ESKER_ASSIGN_OR_RETURN(std::shared_ptr<ServedBlob> blob, registry.Find(id));
    std::string out(size, 'x');
    std::span<uint8_t> span(reinterpret_cast<uint8_t*>(out.data()), size);
    if (reader.ReadCached(*blob, offset, span)) {
      ++blob->counters().reads_from_cache;
      return out;
    }
    std::fill(out.begin(), out.end(), 'x');
    Status status = InternalError("never answered");
    reader.Read(*blob, offset, span, Clock::System().MonotonicNanos() + deadline_ms * 1'000'000,
                [&](const Status& s) { status = s; });
    if (!status.ok()) return status;
    return out;
  }
  // Of the cache file of a blob.
  Status Complete(const BlobId& id) {
    ESKER_ASSIGN_OR_RETURN(std::shared_ptr<ServedBlob> blob, registry.Find(id));
    return blob->cache_file().Complete(*blob->layout(), reader.stopping());
  }

  ServerCounters counters;
  NodeCache cache;
  BlobRegistry registry;
  PackSource packs;
  BlobReader reader;
};

}  // namespace esker::testing
