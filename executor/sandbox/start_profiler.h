// StartProfiler: remembers what starts of an image read, and has it fetched ahead the next time.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/worker_pool.h"
#include "imagefs/blob_server_client.h"
#include "imagefs/store.h"
#include "start_record.h"

namespace esker {

// A start is recorded from its create until the sandbox has run a command and its image's blobs
// were not read for kQuietMs, or kLongestMs after the create, or to its end. The first
// StartRecord::kMostStarts starts of an image are, on whatever node; one at a time on each.
//
// Everything happens on threads of its own, and nothing that fails here fails a start: the calls
// return at once. Thread-safe.
class StartProfiler {
 public:
  static constexpr uint64_t kQuietMs = 2'000;
  static constexpr int64_t kLongestMs = 60'000;

  // Both must outlive it.
  StartProfiler(Store& store, BlobServerClient& blobs, const Clock& clock = Clock::System());
  ~StartProfiler();

  // The maps of `data_blobs`, those that are read through the blob server, are on the node.
  // `all_served`: no other data blob of the image is mounted around it, so that all reads are seen.
  void Created(const std::string& sandbox, const ImageId& image, std::vector<BlobId> data_blobs,
               bool all_served);
  void CommandStarted(const std::string& sandbox);
  void Ended(const std::string& sandbox);

 private:
  struct Start {
    ImageId image;
    bool prefetching = false;
    bool recording = false;
    bool command_seen = false;
    bool ended = false;
    int64_t began_nanos = 0;
  };

  void Begin(const std::string& sandbox, const ImageId& image,
             const std::vector<BlobId>& data_blobs, bool all_served);
  void Run();
  void Look(const std::string& sandbox, const Start& start);
  void Drop(const std::string& sandbox);
  Status Publish(const ImageId& image, const Recording& recording);
  bool Change(const std::string& sandbox, const std::function<void(Start&)>& change);

  Store& store_;
  BlobServerClient& blobs_;
  const Clock& clock_;
  std::mutex mutex_;  // guards what follows; never held across a call
  std::condition_variable wake_;
  std::map<std::string, Start> starts_;
  std::set<ImageId> being_recorded_;
  std::set<ImageId> settled_;  // those that need no further recording, as far as this node knows
  bool stopping_ = false;
  WorkerPool workers_{4, 1024};
  std::thread looker_;
};

}  // namespace esker
