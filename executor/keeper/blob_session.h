// The blob file system: its mount, its /dev/fuse descriptor, and the server behind it.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/event_loop.h"
#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "executor/keeper_client.h"

namespace esker::keeper {

// The keeper's descriptor keeps the session alive when the server dies; a new server on the same
// descriptor goes on with it. Servers are started again at once, with growing pauses when they do
// not stay.
class BlobSession {
 public:
  explicit BlobSession(EventLoop& loop) : loop_(loop) {}

  // Mounts on DATA/run/blobs in this mount namespace and starts the first server.
  Status Start(const KeeperOptions& options);
  const std::string& directory() const { return directory_; }
  pid_t pid() const { return server_.valid() ? server_.pid() : 0; }  // 0 while there is none
  // Ends the server; the next one starts when it is gone. SIGKILL if it takes longer than 5 s.
  Status Replace();
  // Unmounts and ends the server; waits for that at most 5 s before SIGKILL.
  Status Stop();

 private:
  Status StartOne();
  void Ended(int status);
  void Retry(int64_t delay_ns);

  EventLoop& loop_;
  std::string directory_;
  std::vector<std::string> argv_;
  UniqueFd fuse_;
  Process server_;  // a second pidfd of it; the one that the loop watches reaps
  int64_t started_ns_ = 0;
  int64_t pause_ns_ = 0;
  bool stopping_ = false;
};

}  // namespace esker::keeper
