#include "requests.h"

#include <chrono>

#include "base/clock.h"

namespace esker {

void Requests::Restore(const std::string& key, RequestRecord record) {
  std::lock_guard lock(mutex_);
  entries_[key] = {std::move(record), false};
}

Result<Requests::Claim> Requests::Begin(const std::vector<std::string>& keys, const Digest& asked,
                                        int64_t timeout_ms) {
  auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  std::unique_lock lock(mutex_);
  for (;;) {
    Claim claim;
    bool wait = false;
    for (const std::string& key : keys) {
      auto it = entries_.find(key);
      if (it == entries_.end()) continue;
      const Entry& entry = it->second;
      if (entry.record.asked != asked) {
        return AlreadyExistsError("request id or idempotency key " +
                                  key.substr(key.rfind('/') + 1) +
                                  " was used for another request; use a new one");
      }
      wait = wait || entry.in_flight;
      if (entry.record.answered) claim.answer = entry.record.answer;
      if (!entry.record.answered && !entry.in_flight) claim.begun_before = true;
    }
    if (claim.answer) return claim;
    if (!wait) {
      for (const std::string& key : keys) {
        int64_t now = Clock::System().WallNanos();
        entries_[key] = {.record = {.time_ns = now, .asked = asked}, .in_flight = true};
      }
      return claim;
    }
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) {
      return DeadlineExceededError("the same request is still being done for another caller");
    }
  }
}

void Requests::Answer(const std::vector<std::string>& keys, const std::string& answer,
                      int64_t now_ns) {
  {
    std::lock_guard lock(mutex_);
    for (const std::string& key : keys) {
      Entry& entry = entries_[key];
      entry.in_flight = false;
      entry.record.answered = true;
      entry.record.answer = answer;
      entry.record.time_ns = now_ns;
    }
  }
  changed_.notify_all();
}

void Requests::GiveUp(const std::vector<std::string>& keys, bool begun) {
  {
    std::lock_guard lock(mutex_);
    for (const std::string& key : keys) {
      if (begun) {
        entries_[key].in_flight = false;
      } else {
        entries_.erase(key);
      }
    }
  }
  changed_.notify_all();
}

std::vector<std::string> Requests::Expire(int64_t before_ns) {
  std::vector<std::string> expired;
  std::lock_guard lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (!it->second.in_flight && it->second.record.time_ns < before_ns) {
      expired.push_back(it->first);
      it = entries_.erase(it);
    } else {
      ++it;
    }
  }
  return expired;
}

}  // namespace esker
