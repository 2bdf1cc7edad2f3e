// Strand: operations of one sandbox run one after the other, in order of arrival;
// those of different sandboxes run side by side. No lock is held while an operation runs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <utility>

#include "base/status.h"
#include "base/worker_pool.h"

namespace esker {

// A strand has at most one task in the pool, so the pool's queue needs no limit of its own (give it
// SIZE_MAX: a refused task would stop its strand). Must outlive what was posted to it (tasks
// usually hold a shared_ptr to the strand's owner).
class Strand {
 public:
  explicit Strand(WorkerPool& pool) : pool_(pool) {}
  Strand(const Strand&) = delete;
  Strand& operator=(const Strand&) = delete;

  // Runs `task` on a pool thread when its turn comes.
  void Post(std::function<void()> task);

  // Waits for the turn and holds it until destruction; operations that block their caller anyway
  // run on the caller's thread. DEADLINE_EXCEEDED if the turn does not come in time.
  class Turn {
   public:
    Turn(Turn&& other) noexcept : strand_(std::exchange(other.strand_, nullptr)) {}
    ~Turn() {
      if (strand_ != nullptr) strand_->Release();
    }

   private:
    friend class Strand;
    explicit Turn(Strand* strand) : strand_(strand) {}
    Strand* strand_;
  };
  Result<Turn> Enter(int64_t timeout_ms);

 private:
  struct Waiter {
    std::function<void()> task;  // empty: a thread waits in Enter
    std::condition_variable wake;
    bool granted = false;
  };
  void RunOnPool(std::function<void()> task);
  void Release();

  WorkerPool& pool_;
  std::mutex mutex_;  // guards the rest
  bool busy_ = false;
  std::list<Waiter> waiters_;
};

}  // namespace esker
