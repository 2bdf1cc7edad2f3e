// WorkerPool: a fixed number of threads and a bounded queue for work that blocks.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"

namespace esker {

// Thread-safe. The destructor runs what is queued, then joins.
class WorkerPool {
 public:
  WorkerPool(size_t threads, size_t queue_limit);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // RESOURCE_EXHAUSTED when queue_limit functions wait already; nothing is queued then.
  Status Submit(std::function<void()> work);

 private:
  void RunWorker();

  const size_t queue_limit_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace esker
