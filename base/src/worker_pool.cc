#include "base/worker_pool.h"

namespace esker {

WorkerPool::WorkerPool(size_t threads, size_t queue_limit) : queue_limit_(queue_limit) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { RunWorker(); });
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Status WorkerPool::Submit(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (queue_.size() >= queue_limit_) {
      return ResourceExhaustedError("the server is busy: " + std::to_string(queue_limit_) +
                                    " requests wait already; try again shortly");
    }
    queue_.push_back(std::move(work));
  }
  ready_.notify_one();
  return OkStatus();
}

void WorkerPool::RunWorker() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      ready_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace esker
