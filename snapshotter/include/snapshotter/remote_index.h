// RemoteIndex: the Index of another process, for a node. Same interface, same promises; what may
// differ is said here.
//
// - A call that only asks, or may be made twice, is repeated while the index is away, for
//   `patience_ns`; then UNAVAILABLE.
// - The node's leases are renewed by a thread here, all in one call. Until EnableGc() leases are
//   granted at once, without asking: the node takes again what its earlier process held, also while
//   the index is away. After it, a lease is granted by the index before it is returned.
// - An import whose session was lost (the index started again, or heard nothing of us for too long)
//   gets ABORTED from then on: begin it anew.
// - CollectGarbage, Rebuild and GuardGc act on the whole store; GuardGc is not for nodes
//   (UNIMPLEMENTED at the first collection).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "snapshotter/index.h"

namespace esker {

struct RemoteIndexOptions {
  std::string address;      // HOST:PORT
  std::string key;          // the index's
  std::string node_id;      // unique among the store's nodes
  uint64_t node_epoch = 0;  // higher at each start of the node's process
  int64_t patience_ns = 15'000'000'000;
};

// Does not wait for the index. `options.node_epoch` comes from NextNodeEpoch.
Result<std::unique_ptr<Index>> ConnectIndex(const RemoteIndexOptions& options);

// Counts the starts of a node in a file of its data directory. Durable on return.
Result<uint64_t> NextNodeEpoch(const std::string& path);

}  // namespace esker
