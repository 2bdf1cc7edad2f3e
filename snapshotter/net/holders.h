// Holders: which nodes there are, what each of them holds in the index, and for how long.
//
// A node holds leases on images and imports under way. It renews all of them in one call. The node
// that falls silent keeps everything until its lease time and the store's staleness bound have
// passed; then all of it is dropped at once. That a node may hold something is recorded in the
// store before it gets anything, so an index that starts again (or elsewhere) collects no garbage
// until each such node has announced itself or had the time to.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "imagefs/store.h"
#include "snapshotter/index.h"

namespace esker::index_net {

inline constexpr std::string_view kNodeSpace = "nodes";  // the store's records of known nodes

// One process of a node. The epoch counts its starts; `sequence` its calls.
struct Holder {
  std::string node;
  uint64_t epoch = 0;
  uint64_t sequence = 0;
};

struct Announcement {
  Holder holder;
  bool complete = false;  // lists everything: what earlier processes of the node held may go
  std::vector<ImageId> images;
  std::vector<std::string> sessions;
};

// An import of a node. Used by one call at a time: lock `mutex` around uses of what follows.
struct HeldSession {
  std::mutex mutex;
  std::unique_ptr<ImportSession> session;
  std::map<std::string, std::unique_ptr<Lease>> claims;  // by diff_id; they end before the session
  uint64_t sequence = 0;                                 // of the call that began it
};

// Thread-safe. Lock order: mutex_, then a node's; neither while a session's is held. The index's
// own locks come after both. Times are monotonic.
class Holders {
 public:
  struct Options {
    int64_t lease_ns = 60'000'000'000;
    int64_t staleness_ns = 30'000'000'000;
    Clock* clock = nullptr;  // nullptr: the system's
  };
  // `store` and `index` must outlive it.
  Holders(Store& store, Index& index, const Options& options);

  // Reads who may hold something since before this index started. Once, before anything else.
  Status Load();

  struct Lost {
    std::vector<ImageId> images;
    std::vector<std::string> sessions;
  };
  // The announced is held from now on and everything else that the node took before is let go
  // (what an earlier process of it held: once the announcement is complete). What could not be
  // taken is returned. ABORTED: a later process of this node has announced itself.
  Result<Lost> Renew(const Announcement& announcement);
  // NOT_FOUND if the image does not exist. Idempotent.
  Status LeaseImage(const Holder& holder, const ImageId& image, const std::string& purpose);
  Status StartImport(const Holder& holder, const std::string& session);  // idempotent
  Status EndImport(const Holder& holder, const std::string& session);    // unknown is OK
  // ABORTED: there is no such import (any more).
  Result<std::shared_ptr<HeldSession>> FindImport(const Holder& holder, const std::string& session);

  // Drops what nodes hold that have been silent for too long. Call it a few times per lease time.
  void DropSilent();
  // Whether garbage may be collected like this, asked for by `options.caller`: every node known
  // from before has announced itself or is past its time; and less grace than a lease time and the
  // staleness bound only while no other node holds anything.
  Status MayCollect(const GcOptions& options);

  struct NodeStats {
    std::string node;
    size_t images = 0, imports = 0;
    int64_t silent_ns = 0;
    bool announced = false;
  };
  std::vector<NodeStats> Describe();

 private:
  struct HeldImage {
    std::unique_ptr<Lease> lease;
    uint64_t sequence = 0;
  };
  struct Node {
    explicit Node(std::string n) : name(std::move(n)) {}
    const std::string name;
    std::mutex mutex;  // guards what follows
    uint64_t epoch = 0;
    uint64_t renewed = 0;    // the highest sequence of a Renew
    bool announced = false;  // this process of it has listed everything
    bool recorded = false;   // in the store
    bool dropped = false;    // no longer in nodes_: look it up again
    int64_t last_seen_ns = 0;
    std::map<ImageId, HeldImage> images;
    std::map<ImageId, std::unique_ptr<Lease>> inherited;  // of earlier processes
    std::map<std::string, std::shared_ptr<HeldSession>> sessions;
    bool empty() const { return images.empty() && inherited.empty() && sessions.empty(); }
  };
  using NodePtr = std::shared_ptr<Node>;
  // The node, locked, for a call of this process of it: noted as alive and recorded in the store.
  struct Entered {
    NodePtr node;
    std::unique_lock<std::mutex> lock;
  };

  Result<Entered> Enter(const Holder& holder);
  Status BeginEpoch(Node& node, uint64_t epoch);
  Status Record(Node& node);
  Status Take(Node& node, const ImageId& image, uint64_t sequence, const std::string& purpose);
  bool PastItsTime(const Node& node, int64_t now) const;
  std::vector<NodePtr> All();

  Store& store_;
  Index& index_;
  Clock& clock_;
  const int64_t lease_ns_, staleness_ns_;
  std::mutex mutex_;  // guards nodes_
  std::map<std::string, NodePtr> nodes_;
};

}  // namespace esker::index_net
