// ReadWatch: sees to it that every read that was given to a fetch thread ends by its deadline, also
// when the store hangs inside a system call, where no thread can be called back.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"

namespace esker {

// One read under way. Whoever wins Claim() answers it.
class PendingRead {
 public:
  explicit PendingRead(std::function<void()> overdue) : overdue_(std::move(overdue)) {}
  bool Claim() { return !claimed_.exchange(true); }
  bool claimed() const { return claimed_.load(); }

 private:
  friend class ReadWatch;
  const std::function<void()> overdue_;
  std::atomic<bool> claimed_{false};
};

// Thread-safe.
class ReadWatch {
 public:
  explicit ReadWatch(const Clock& clock);
  ~ReadWatch();

  // Calls `overdue` on its own thread if the read is not claimed by then.
  std::shared_ptr<PendingRead> Add(int64_t deadline_nanos, std::function<void()> overdue);

 private:
  void Run();

  const Clock& clock_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  // Weak: those that were answered are gone, and cost a pointer until their deadline.
  std::multimap<int64_t, std::weak_ptr<PendingRead>> reads_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace esker
