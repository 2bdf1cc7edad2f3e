// Network namespaces made ahead: making one takes as long as half of the rest of a container.
#pragma once

#include <vector>

#include "base/event_loop.h"
#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace esker::keeper {

// Each namespace has its loopback up and is used by one sandbox only. Refilled by a helper child
// whenever it is half empty; never waits.
class NetworkPool {
 public:
  NetworkPool(EventLoop& loop, size_t size) : loop_(loop), size_(size) {}

  // One of them; invalid when there is none just now: then the container makes its own.
  UniqueFd Take();
  void Refill();
  // Ends the helper, if there is one, and waits for that.
  void Stop();

 private:
  void Collect(int socket);

  EventLoop& loop_;
  size_t size_;
  std::vector<UniqueFd> ready_;
  bool stopping_ = false;
  Process helper_;  // valid while it works; the loop reaps it
};

}  // namespace esker::keeper
