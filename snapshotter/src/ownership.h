// Ownership: this process is the one index of its store, says so in the store again and again, and
// notices when another one takes over. docs/formats/store.md, docs/operations.md.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "imagefs/store.h"
#include "snapshotter/index.h"

namespace esker {

// Thread-safe. The destructor releases the store, so that the next index need not wait.
class Ownership {
 public:
  // FAILED_PRECONDITION while an owner elsewhere is alive and !options.take_over. Blocks for the
  // staleness bound when that owner did not release the store: it may see the claim so late.
  static Result<std::unique_ptr<Ownership>> Claim(Store& store, const IndexOptions& options);
  ~Ownership();
  Ownership(const Ownership&) = delete;
  Ownership& operator=(const Ownership&) = delete;

  uint64_t epoch() const { return epoch_; }
  // FAILED_PRECONDITION once a beat has found another owner.
  Status Check() const;

 private:
  Ownership(Store& store, uint64_t epoch, int64_t beat_ns);
  void Run();
  Status Beat(uint64_t number);

  Store& store_;
  const uint64_t epoch_;
  const int64_t beat_ns_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mutex_
  Status lost_;            // guarded by mutex_
  std::thread thread_;
};

}  // namespace esker
