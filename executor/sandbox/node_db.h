// NodeDb: the node's durable state, in RocksDB. Keys and values: record.h.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/status.h"

namespace esker {

// Changes that become visible together.
class DbBatch {
 public:
  void Put(std::string key, std::string value) {
    changes_.push_back({std::move(key), std::move(value)});
  }
  void Delete(std::string key) { changes_.push_back({std::move(key), std::nullopt}); }
  bool empty() const { return changes_.empty(); }

 private:
  friend class NodeDb;
  std::vector<std::pair<std::string, std::optional<std::string>>> changes_;
};

// Thread-safe. One process at a time has it open.
class NodeDb {
 public:
  // kSynced: on disk on return (state of sandboxes, answers). kSurvivesProcess: in the kernel's
  // hands on return, so a SIGKILL of this process loses nothing; a power cut may, which is enough
  // for what ends with the machine anyway (commands, events).
  enum class Durability { kSurvivesProcess, kSynced };

  // FAILED_PRECONDITION: another process has it open. DATA_LOSS: RocksDB says it is damaged.
  static Result<std::unique_ptr<NodeDb>> Open(const std::string& directory);
  ~NodeDb();

  Status Write(const DbBatch& batch, Durability durability);
  Result<std::optional<std::string>> Get(const std::string& key) const;
  // In key order; a callback error ends the scan and is returned.
  Status Scan(
      std::string_view prefix,
      const std::function<Status(std::string_view key, std::string_view value)>& callback) const;

 private:
  struct Impl;
  explicit NodeDb(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Writes for threads that must not wait: one thread of its own, in order of submission.
class DbWriter {
 public:
  explicit DbWriter(NodeDb& db);
  ~DbWriter();  // writes what was submitted, then ends
  DbWriter(const DbWriter&) = delete;
  DbWriter& operator=(const DbWriter&) = delete;

  // `prepare` fills the batch on the writer's thread (it may look at cgroup files and the like);
  // `done` is called there when it is written. Bounded by what callers have in flight.
  void Submit(std::function<void(DbBatch&)> prepare, std::function<void(Status)> done);

 private:
  struct Item {
    std::function<void(DbBatch&)> prepare;
    std::function<void(Status)> done;
  };
  void Run();

  NodeDb& db_;
  std::mutex mutex_;  // guards the next two
  std::vector<Item> items_;
  bool stopping_ = false;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace esker
