// NodeLeases: what this node holds in the index, renewed by a thread in one call again and again.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "base/status.h"
#include "net/holders.h"
#include "net/index_channel.h"
#include "snapshotter/index.h"

namespace esker::index_net {

// Thread-safe. Leases must not outlive it.
class NodeLeases {
 public:
  NodeLeases(IndexChannel& channel, std::string node, uint64_t epoch);
  ~NodeLeases();
  NodeLeases(const NodeLeases&) = delete;
  NodeLeases& operator=(const NodeLeases&) = delete;

  // Before Complete() without asking; after it the index has granted it.
  Result<std::unique_ptr<Lease>> LeaseImage(const ImageId& image, const std::string& purpose);
  // All that an earlier process of the node held has been leased again: the index may let go of the
  // rest.
  void Complete();

  // For a call about what is held.
  Holder NextCall();
  // An import is renewed from now on, until EndImport.
  void AddImport(const std::string& session);
  void EndImport(const std::string& session);

 private:
  class ImageLease;
  struct Held {
    size_t count = 0;        // leases here, and calls that ask for one
    bool granted = false;    // somebody counts on it
    bool confirmed = false;  // the index has it
    bool told = false;       // that it was lost
  };

  void Release(const ImageId& image);
  // Whether the index has it, and has heard of us so lately that it must have it still.
  bool SurelyHeldLocked(const Held& held) const;
  void Run();
  Status Renew();
  void Note(const Status& status);

  IndexChannel& channel_;
  const std::string node_;
  const uint64_t epoch_;

  std::mutex mutex_;  // guards what follows; not held during calls
  std::condition_variable wake_;
  bool stopping_ = false;
  bool complete_ = false;
  bool changed_ = false;  // something to tell before the next renewal is due
  uint64_t sequence_ = 0;
  std::map<ImageId, Held> images_;
  std::set<std::string> imports_;
  int64_t lease_ns_;
  int64_t heard_ns_ = 0;  // when the last renewal that succeeded was begun; 0: never
  bool reachable_ = true;
  std::thread thread_;
};

}  // namespace esker::index_net
