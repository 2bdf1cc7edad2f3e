// The blob file system: its mount, its /dev/fuse descriptor, and the server behind it.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/event_loop.h"
#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "blob_probe.h"
#include "executor/keeper_client.h"

namespace esker::keeper {

// The keeper's descriptor keeps the session alive when the server dies; a new server on the same
// descriptor goes on with it. Servers are started again at once, with growing pauses when they do
// not stay. One that hangs is killed and replaced (BlobProbe says so).
class BlobSession {
 public:
  explicit BlobSession(EventLoop& loop) : loop_(loop), probe_(loop) {}

  // Mounts on DATA/run/blobs in this mount namespace and starts the first server.
  Status Start(const KeeperOptions& options);
  const std::string& directory() const { return directory_; }
  pid_t pid() const { return server_.valid() ? server_.pid() : 0; }  // 0 while there is none
  // Ends the server; the next one starts when it is gone. SIGKILL if it takes longer than 1 s.
  Status Replace();
  // The same, and from now on servers are started from `program`. An error changes nothing.
  Status Upgrade(const std::string& program);
  // Unmounts and ends the server; waits for that at most 5 s before SIGKILL.
  Status Stop();

 private:
  Status StartOne();
  void Ended(uint64_t number, int status);
  void OnFinding(BlobProbe::Finding finding);
  void Abandon(uint64_t number);
  void Retry(int64_t delay_ns);

  EventLoop& loop_;
  std::string directory_;
  std::vector<std::string> argv_;
  UniqueFd fuse_;
  BlobProbe probe_;
  Process server_;          // a second pidfd of it; the one that the loop watches reaps
  uint64_t number_ = 0;     // of the server: each has its own
  uint32_t abandoned_ = 0;  // killed, and not dead yet: they wait in the kernel for the store
  int64_t started_ns_ = 0;
  int64_t pause_ns_ = 0;
  bool stopping_ = false;
};

}  // namespace esker::keeper
