// Compresses frames on two helper threads, in a bounded queue, and gives them back in the order
// they came. Private to the store.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "pack_format.h"

namespace esker {

// Push and Pop are for one thread; the helpers are inside. Memory: at most kMaxQueued frames.
class FrameCompressor {
 public:
  static constexpr size_t kThreads = 2;
  static constexpr size_t kMaxQueued = 8;

  FrameCompressor() = default;
  ~FrameCompressor();
  FrameCompressor(const FrameCompressor&) = delete;
  FrameCompressor& operator=(const FrameCompressor&) = delete;

  struct Frame {
    uint32_t plain_bytes = 0;
    pack_format::Packed packed;
  };

  bool full() const { return queue_size_ >= kMaxQueued; }
  // `full()` must be false.
  void Push(std::string plain);
  // The oldest frame, waiting for it; nothing if none is queued. With `wait` false, nothing also
  // if it is not ready yet.
  std::optional<Frame> Pop(bool wait);

 private:
  struct Job {
    std::string plain;
    Frame frame;
    bool taken = false;
    bool done = false;
  };

  void Run();

  size_t queue_size_ = 0;  // touched by the one caller only
  std::mutex mutex_;
  std::condition_variable work_;           // a job is waiting, or stop_
  std::condition_variable done_;           // a job was done
  std::deque<std::shared_ptr<Job>> jobs_;  // guarded by mutex_; in order of Push
  bool stop_ = false;                      // guarded by mutex_
  std::vector<std::thread> threads_;       // started with the second frame
};

}  // namespace esker
