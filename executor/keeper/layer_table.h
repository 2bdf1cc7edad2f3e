// The layers that are mounted: one EROFS mount each, shared by all sandboxes, kept while idle.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/event_loop.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "executor/keeper_client.h"
#include "imagefs/layer_mount.h"

namespace esker::keeper {

struct MountedLayer {
  UniqueFd mount;    // detached; made by fsmount
  UniqueFd loop[2];  // what it lies on where the kernel cannot mount files
};

// Mounting opens the data file, which may wait for the blob server, so it happens in a child with a
// deadline; the loop never waits. Callers of the same layer share one attempt.
class LayerTable {
 public:
  using Ready = std::function<void(Result<std::shared_ptr<const MountedLayer>>)>;

  LayerTable(EventLoop& loop, std::string blobs_directory)
      : loop_(loop), blobs_directory_(std::move(blobs_directory)) {}

  // Calls `ready` once, possibly before it returns. A failure is not remembered.
  void Get(const KeeperLayer& layer, Ready ready);
  // Unmounts those that nobody outside the table holds.
  uint32_t DropIdle();

 private:
  struct Entry {
    std::shared_ptr<const MountedLayer> layer;  // null while it is being mounted
    std::vector<Ready> waiting;
    EventLoop::TimerId deadline = 0;
  };
  Status StartMount(const std::string& key, const LayerMountSpec& spec);
  void Finish(const std::string& key, Result<std::shared_ptr<const MountedLayer>> result);

  EventLoop& loop_;
  std::string blobs_directory_;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace esker::keeper
