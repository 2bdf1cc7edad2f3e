// IndexServer: an index for nodes in other processes, over gRPC
// (proto/esker/internal/v1/index.proto).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "imagefs/store.h"
#include "snapshotter/index.h"

namespace esker {

struct IndexServerOptions {
  std::string listen;  // HOST:PORT
  std::string key;     // what every call must carry; not empty
  // What a node holds stays that long after its last sign of life, plus the staleness bound: how
  // late a new name of the store may appear on another machine.
  int64_t lease_ns = 60'000'000'000;
  int64_t staleness_ns = 30'000'000'000;
  Clock* clock = nullptr;  // nullptr: the system's
};

class IndexServer {
 public:
  // Guards the index's garbage collection (Index::GuardGc), so call it before EnableGc(); listens
  // on return. `store` and `index` must outlive it. FAILED_PRECONDITION when the address is taken.
  static Result<std::unique_ptr<IndexServer>> Start(Store& store, Index& index,
                                                    const IndexServerOptions& options);
  // Ends calls in flight after a short grace. No collection may be under way.
  virtual ~IndexServer() = default;
  virtual int port() const = 0;
};

// The key in the file, made (random, mode 0600) if there is none and `make` is set. NOT_FOUND,
// FAILED_PRECONDITION when others than its owner may read it.
Result<std::string> ReadIndexKey(const std::string& path, bool make);

}  // namespace esker
