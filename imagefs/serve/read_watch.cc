#include "read_watch.h"

#include <chrono>
#include <vector>

namespace esker {

ReadWatch::ReadWatch(const Clock& clock) : clock_(clock), thread_([this] { Run(); }) {}

ReadWatch::~ReadWatch() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::shared_ptr<PendingRead> ReadWatch::Add(int64_t deadline_nanos, std::function<void()> overdue) {
  // Not make_shared: the weak pointer below would keep the whole object's memory.
  std::shared_ptr<PendingRead> read(new PendingRead(std::move(overdue)));
  std::lock_guard lock(mutex_);
  reads_.emplace(deadline_nanos, read);
  return read;
}

void ReadWatch::Run() {
  constexpr auto kLook = std::chrono::milliseconds(200);
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    std::vector<std::shared_ptr<PendingRead>> due;
    const auto end = reads_.upper_bound(clock_.MonotonicNanos());
    for (auto it = reads_.begin(); it != end; ++it) {
      if (std::shared_ptr<PendingRead> read = it->second.lock()) due.push_back(std::move(read));
    }
    reads_.erase(reads_.begin(), end);
    lock.unlock();
    for (const auto& read : due) {
      if (read->Claim()) read->overdue_();
    }
    lock.lock();
    wake_.wait_for(lock, kLook, [this] { return stopping_; });
  }
}

}  // namespace esker
