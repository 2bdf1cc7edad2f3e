// Builds containers: from a request to a running init, many at once, without ever waiting.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "container_child.h"
#include "init_image.h"
#include "layer_table.h"
#include "network_pool.h"
#include "protocol.h"
#include "templates.h"
#include "user_namespaces.h"

namespace esker::keeper {

struct BuiltContainer {
  Process init;  // not reaped
  std::vector<std::shared_ptr<const MountedLayer>> layers;
};

class ContainerBuilder {
 public:
  using Done = std::function<void(Result<BuiltContainer>)>;

  ContainerBuilder(EventLoop& loop, LayerTable& layers, const KeeperOptions& options);
  ~ContainerBuilder();
  Status Open();  // templates, filter, init

  // `fds` in the order of CreateRequest; the request has passed CheckCreate. Calls `done` once.
  // RESOURCE_EXHAUSTED at once when too many wait already. After a failure nothing is left.
  void Build(CreateRequest request, std::vector<UniqueFd> fds, Done done);
  // Ends what works ahead; nothing is pending any more.
  void Stop() { networks_.Stop(); }
  size_t pending() const { return pending_; }

 private:
  struct Job;
  void LayersReady(const std::shared_ptr<Job>& job);
  void Pump();
  Status Launch(const std::shared_ptr<Job>& job);
  void ReadReport(const std::shared_ptr<Job>& job);
  void Complete(const std::shared_ptr<Job>& job);
  void Finish(const std::shared_ptr<Job>& job, Result<BuiltContainer> result);

  EventLoop& loop_;
  LayerTable& layers_;
  Templates templates_;
  std::vector<ProcCover> covers_;
  UserNamespaces user_namespaces_;
  InitImage init_;
  NetworkPool networks_;
  UniqueFd filter_;
  std::string filter_path_;
  UniqueFd self_;                           // the keeper's own pidfd
  std::deque<std::shared_ptr<Job>> ready_;  // layers mounted, waiting for their turn
  size_t pending_ = 0;                      // accepted and not done
  size_t running_ = 0;                      // between clone and execve
};

}  // namespace esker::keeper
