// NodeRig: a real store, index and node in a directory, with a busybox image; for tests.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "executor/node.h"
#include "imagefs/store.h"
#include "snapshotter/index.h"

namespace esker::testing {

class NodeRig {
 public:
  // DIRECTORY/{store,index,node,cache,bin}. `binaries`: esker-keeper, esker-init, esker-imagefs.
  NodeRig(std::string directory, std::string node_id) : directory_(directory), node_id_(node_id) {}

  Status Open();   // store, index, image (once), node
  void Close();    // the objects go, sandboxes stay
  Status Drain();  // nothing stays
  Node& node() { return *node_; }
  Index& index() { return *index_; }
  Store& store() { return *store_; }
  NodeOptions options;  // data, cache, binaries and id are filled in by Open

 private:
  Status ImportBusybox();

  std::string directory_, node_id_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Index> index_;
  std::unique_ptr<Node> node_;
};

// Collects a command's output; waits for its end.
class Collector : public CommandObserver {
 public:
  void OnOutput(int stream, uint64_t offset, std::string data, uint64_t lost) override;
  void OnExit(const CommandInfo& info) override;

  // Takes the subscription over; output flows while this lives.
  void Follow(std::unique_ptr<CommandSubscription> subscription);
  void Hold();  // asks for nothing more until Go
  void Go();
  // DEADLINE_EXCEEDED if it does not end in time.
  Result<CommandInfo> WaitExit(int timeout_ms = 20'000);
  Status WaitBytes(size_t bytes, int timeout_ms = 20'000);
  void Drop();  // ends the subscription

  std::string out() const;
  std::string err() const;
  uint64_t lost() const;
  bool in_order() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<CommandSubscription> subscription_;
  std::string data_[2];
  uint64_t next_[2] = {0, 0};
  uint64_t lost_ = 0;
  bool in_order_ = true, held_ = false, owed_ = false;
  std::optional<CommandInfo> exit_;
};

struct RunResult {
  CommandInfo info;
  std::string out, err;
};
Result<CommandInfo> Start(Node& node, const std::string& sandbox, const CommandSpec& spec);
Result<RunResult> RunShell(Node& node, const std::string& sandbox, const std::string& shell);
Result<bool> Signal(Node& node, const std::string& sandbox, const std::string& command, int signal,
                    bool whole_tree);
Result<uint64_t> SendStdin(Node& node, const std::string& sandbox, const std::string& command,
                           const std::string& data, bool eof,
                           std::optional<uint64_t> offset = std::nullopt);
Result<InitFileResult> FileCall(Node& node, const std::string& sandbox,
                                const InitFileRequest& request, UniqueFd stream = UniqueFd());

}  // namespace esker::testing
