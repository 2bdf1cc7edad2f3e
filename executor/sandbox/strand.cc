#include "strand.h"

#include <chrono>
#include <cstdlib>

namespace esker {

void Strand::Post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    if (busy_) {
      waiters_.emplace_back().task = std::move(task);
      return;
    }
    busy_ = true;
  }
  RunOnPool(std::move(task));
}

void Strand::RunOnPool(std::function<void()> task) {
  // The task is destroyed after the release: it may hold the last reference to the strand's owner.
  Status queued = pool_.Submit([this, task = std::move(task)] {
    task();
    Release();
  });
  if (!queued.ok()) std::abort();  // the pool was made with a limit: see the class comment
}

Result<Strand::Turn> Strand::Enter(int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  if (!busy_) {
    busy_ = true;
    return Turn(this);
  }
  auto self = waiters_.emplace(waiters_.end());
  bool granted = self->wake.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                     [&] { return self->granted; });
  waiters_.erase(self);
  if (!granted) {
    return DeadlineExceededError("other operations on it did not end within " +
                                 std::to_string(timeout_ms) + " ms");
  }
  return Turn(this);
}

void Strand::Release() {
  std::function<void()> next;
  {
    std::lock_guard lock(mutex_);
    auto first = waiters_.begin();
    // A granted waiter is still in the list until its thread has woken.
    while (first != waiters_.end() && first->granted) ++first;
    if (first == waiters_.end()) {
      busy_ = false;
      return;
    }
    if (!first->task) {
      first->granted = true;
      first->wake.notify_one();
      return;
    }
    next = std::move(first->task);
    waiters_.erase(first);
  }
  RunOnPool(std::move(next));
}

}  // namespace esker
