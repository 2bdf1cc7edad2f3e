#include "ownership.h"

#include <chrono>
#include <string>

#include "base/log.h"

namespace esker {
namespace {

// Two beats may get lost before an owner counts as dead.
constexpr int64_t kBeatsMissed = 3;

int64_t ToSeconds(int64_t ns) { return (ns + 999'999'999) / 1'000'000'000; }

// OK, and whether the claim must be given time to be seen by an owner that did not say goodbye.
Result<bool> MayClaim(Store& store, const IndexOptions& options) {
  ESKER_ASSIGN_OR_RETURN(std::optional<Store::Owner> owner, store.FindOwner());
  // Our own earlier process is dead: we hold the lock on its database.
  if (!owner || !owner->silent_seconds || owner->claimant == options.claimant) return false;
  const int64_t dead_after = ToSeconds(kBeatsMissed * options.beat_ns + options.staleness_ns);
  if (*owner->silent_seconds < dead_after && !options.take_over) {
    return FailedPreconditionError(
        "the store already has an index, " + owner->claimant + ", which was alive " +
        std::to_string(*owner->silent_seconds) +
        " s ago; a store has one index: stop that one, or " + "wait until it has been silent for " +
        std::to_string(dead_after) +
        " s, or start with --take-over, which shuts it out; a node of that index is started with " +
        "--roles=gateway,node --index=HOST:PORT");
  }
  LogWarning("store_take_over", {{"from", owner->claimant},
                                 {"silent_seconds", *owner->silent_seconds},
                                 {"wait_seconds", ToSeconds(options.staleness_ns)}});
  return true;
}

// What owners that were killed have left.
Status RemoveSignsOfEarlier(Store& store, uint64_t epoch) {
  ESKER_ASSIGN_OR_RETURN(std::vector<uint64_t> epochs, store.ListAliveOwners());
  for (uint64_t earlier : epochs) {
    if (earlier < epoch) ESKER_RETURN_IF_ERROR(store.ReleaseOwner(earlier));
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<Ownership>> Ownership::Claim(Store& store, const IndexOptions& options) {
  ESKER_ASSIGN_OR_RETURN(bool wait, MayClaim(store, options));
  ESKER_ASSIGN_OR_RETURN(uint64_t epoch, store.ClaimOwnership(options.claimant));
  std::unique_ptr<Ownership> ownership(new Ownership(store, epoch, options.beat_ns));
  ESKER_RETURN_IF_ERROR(ownership->Beat(1));
  ESKER_RETURN_IF_ERROR(RemoveSignsOfEarlier(store, epoch));
  ownership->thread_ = std::thread([raw = ownership.get()] { raw->Run(); });
  // What the other one wrote in this time is found when the database is compared with the store,
  // which comes after.
  if (wait) std::this_thread::sleep_for(std::chrono::nanoseconds(options.staleness_ns));
  return ownership;
}

Ownership::Ownership(Store& store, uint64_t epoch, int64_t beat_ns)
    : store_(store), epoch_(epoch), beat_ns_(beat_ns) {}

Ownership::~Ownership() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  // If that fails, the next index waits as it does after a crash.
  if (Status released = store_.ReleaseOwner(epoch_); !released.ok()) {
    LogWarning("store_not_released", {{"why", released.ToString()}});
  }
}

Status Ownership::Check() const {
  std::lock_guard lock(mutex_);
  return lost_;
}

Status Ownership::Beat(uint64_t number) {
  ESKER_RETURN_IF_ERROR(store_.CheckOwnership(epoch_));
  return store_.BeatOwner(epoch_, number);
}

void Ownership::Run() {
  bool troubled = false;
  for (uint64_t number = 2;; ++number) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, std::chrono::nanoseconds(beat_ns_), [&] { return stopping_; });
      if (stopping_) return;
    }
    Status beat = Beat(number);
    if (beat.code() == Code::kFailedPrecondition) {
      LogError("store_taken_over", {{"why", beat.ToString()},
                                    {"what", "this index changes nothing any more; stop it"}});
      std::lock_guard lock(mutex_);
      lost_ = beat;
    } else if (!beat.ok() && !troubled) {
      LogWarning("owner_beat_failed", {{"why", beat.ToString()}});
    }
    troubled = !beat.ok();
  }
}

}  // namespace esker
