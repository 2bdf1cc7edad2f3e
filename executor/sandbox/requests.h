// Requests: each is done once, however often it is asked; answers hold across restarts for a day.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "node_db.h"
#include "record.h"

namespace esker {

// Thread-safe. What is answered lives in the database; this is its picture in memory.
class Requests {
 public:
  // A record found in the database at the start.
  void Restore(const std::string& key, RequestRecord record);

  // Claims the keys for a caller that will do the request, or gives the answer of the one who did.
  // While another caller does it, waits for at most timeout_ms (DEADLINE_EXCEEDED).
  // ALREADY_EXISTS: one of the keys was used for something else.
  struct Claim {
    std::optional<std::string> answer;
    bool begun_before = false;  // an earlier process recorded the intent, and no answer
  };
  Result<Claim> Begin(const std::vector<std::string>& keys, const Digest& asked,
                      int64_t timeout_ms);
  // Ends the claim. The caller has written (or writes) the same to the database.
  void Answer(const std::vector<std::string>& keys, const std::string& answer, int64_t now_ns);
  // `begun`: it may have been done in part, which a repetition is told (begun_before).
  void GiveUp(const std::vector<std::string>& keys, bool begun = false);
  // Keys older than `before_ns`, forgotten here; the caller deletes them from the database.
  std::vector<std::string> Expire(int64_t before_ns);

 private:
  struct Entry {
    RequestRecord record;
    bool in_flight = false;
  };
  std::mutex mutex_;  // guards entries_
  std::condition_variable changed_;
  std::map<std::string, Entry> entries_;
};

}  // namespace esker
