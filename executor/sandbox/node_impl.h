// NodeImpl: the Node. Its methods are spread over node_*.cc by concern.
//
// Threads: callers' threads and `pool_` run operations, one at a time per sandbox (its strand);
// `loop_thread_` runs connections to init, command output and timers; `writer_` writes for the
// loop; `reaper_` removes what ended sandboxes leave behind. Lock order: mutex_, Sandbox::mutex, a
// command's own. None is held across a system call that waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <semaphore>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "command.h"
#include "executor/cgroup.h"
#include "executor/keeper_client.h"
#include "executor/node.h"
#include "executor/node_metrics.h"
#include "executor/upper_store.h"
#include "id_ranges.h"
#include "imagefs/blob_server_client.h"
#include "imagefs/layer_cache.h"
#include "node_counters.h"
#include "node_db.h"
#include "requests.h"
#include "sandbox.h"
#include "start_profiler.h"

namespace esker {

class NodeImpl final : public Node, public CommandOwner {
 public:
  NodeImpl(Store& store, Index& index, const NodeOptions& options);
  ~NodeImpl() override;
  Status Start();

  Status Drain() override;
  const std::string& node_id() const override { return node_id_; }

  Result<SandboxInfo> Create(const SandboxSpec& spec) override;
  Result<SandboxInfo> Get(const std::string& id) override;
  std::vector<SandboxInfo> List(bool include_ended, const std::string& after, size_t limit,
                                const std::function<bool(const SandboxInfo&)>& filter) override;
  Result<bool> Delete(const std::string& id) override;
  Result<PauseInfo> Pause(const std::string& id) override;
  Result<SandboxInfo> Resume(const std::string& id) override;
  Result<SandboxInfo> SetTimeout(const std::string& id, int64_t ttl_ms,
                                 int64_t idle_ttl_ms) override;
  Result<SnapshotInfo> Snapshot(const std::string& id, const std::string& request_id,
                                const std::string& tag) override;
  Result<std::vector<ForkChild>> Fork(const std::string& id, const std::string& request_id,
                                      uint32_t count, int64_t ttl_ms,
                                      const std::map<std::string, std::string>& metadata,
                                      ImageId* image) override;
  Result<SandboxUsage> GetUsage(const std::string& id) override;
  Result<std::vector<SandboxEvent>> GetEvents(const std::string& id) override;

  void StartCommand(const std::string& sandbox, const CommandSpec& spec,
                    std::function<void(Result<CommandInfo>)> done) override;
  Result<std::unique_ptr<CommandSubscription>> Attach(const std::string& sandbox,
                                                      const std::string& command,
                                                      uint64_t stdout_offset,
                                                      uint64_t stderr_offset, bool want_output,
                                                      CommandObserver* observer) override;
  Result<CommandInfo> GetCommand(const std::string& sandbox, const std::string& command) override;
  Result<std::vector<CommandInfo>> ListCommands(const std::string& sandbox,
                                                bool include_ended) override;
  void SignalCommand(const std::string& sandbox, const std::string& command, int signal,
                     bool whole_tree, std::function<void(Result<bool>)> done) override;
  void SendStdin(const std::string& sandbox, const std::string& command, std::string data, bool eof,
                 std::optional<uint64_t> offset,
                 std::function<void(Result<uint64_t>)> done) override;
  void ResizeCommand(const std::string& sandbox, const std::string& command, uint16_t rows,
                     uint16_t cols, std::function<void(Status)> done) override;
  void File(const std::string& sandbox, const InitFileRequest& request, UniqueFd stream,
            std::function<void(Result<InitFileResult>)> done) override;
  Stats GetStats() override;
  NodeMetrics GetMetrics() override;
  Status DropUnused() override;
  BlobServerClient* blob_server() override { return blob_client_.get(); }

  // CommandOwner
  EventLoop& loop() override { return *loop_; }
  void Persist(const std::shared_ptr<Command>& command, bool exited,
               std::function<void(Status)> done) override;
  void CloseStdin(const Command& command) override;
  void Forget(const Command& command) override;

 private:
  using SandboxPtr = std::shared_ptr<Sandbox>;
  using CommandPtr = std::shared_ptr<Command>;

  // --- node.cc: looking things up, recording
  Result<SandboxPtr> Find(const std::string& id) const;
  SandboxPtr FindOrNull(const std::string& id) const;
  std::vector<SandboxPtr> All() const;
  // In the sandbox's volume, beside what it sees of that: it goes when the volume goes.
  std::string SocketPath(const std::string& id) const { return uppers_->PathOf(id) + "/init.sock"; }
  std::string LogDirectory(const std::string& id) const { return logs_ + "/" + id; }
  // Changes the record and writes it, with an event if `what` is not empty.
  Status Record(Sandbox& sandbox, const std::function<void(SandboxRecord&)>& change,
                const std::string& what, const std::string& detail, DbBatch batch = {},
                NodeDb::Durability durability = NodeDb::Durability::kSynced);
  void AddEvent(Sandbox& sandbox, DbBatch& batch, const std::string& what,
                const std::string& detail);
  // An event for which nobody waits.
  void NoteEvent(const SandboxPtr& sandbox, const std::string& what, const std::string& detail);
  Result<Strand::Turn> EnterStrand(Sandbox& sandbox);
  // Runs on the loop's thread and waits for it.
  void OnLoop(const std::function<void()>& task);
  int64_t WallNow() const { return clock_->WallNanos(); }

  // --- node_create.cc
  Result<uint64_t> ChooseDiskLimit(uint64_t asked) const;
  Result<SandboxRecord> PrepareRecord(const SandboxSpec& spec, const ImageRecord& image) const;
  Result<SandboxInfo> CreateNew(const SandboxSpec& spec, const Digest& asked,
                                const std::vector<std::string>& keys, int64_t deadline_ns);
  Status Admit(SandboxRecord record, SandboxPtr* out);
  Status Build(Sandbox& sandbox, const ImageRecord& image, const SandboxSpec& spec,
               int64_t deadline_ns);
  Result<std::vector<KeeperLayer>> PrepareLayers(const std::string& id, const ImageRecord& image);
  Result<ContainerHandle> StartContainer(Sandbox& sandbox, const ImageRecord& image,
                                         int64_t deadline_ns);
  // Connects to init and takes its inventory in. Waits.
  Status ConnectInit(const SandboxPtr& sandbox, int64_t deadline_ns);

  // --- node_end.cc
  // Ends it for good, whatever phase it is in. Strand. Value: did it live.
  Result<bool> End(const SandboxPtr& sandbox, const std::string& reason,
                   const std::string& message);
  // Returns when none of its processes is left.
  Status KillProcesses(Sandbox& sandbox);
  // Removes what is left of a sandbox that has ended. Reaper's thread.
  void Reap(const SandboxPtr& sandbox);
  void ReapLater(const SandboxPtr& sandbox);
  // Acknowledges its end to the keeper once all is removed and the keeper has told of it.
  void Settle(const SandboxPtr& sandbox);
  void RetryReaping();
  Status AwaitReaped();
  void FinishCommands(const SandboxPtr& sandbox, const std::string& reason);
  // Posts an end to the strand, once.
  void PostEnd(const SandboxPtr& sandbox, std::string reason, std::string message);
  void OnContainerEnd(const ContainerEnd& end);
  Status StartKeeper();
  // The keeper goes on with this server's blob server program, if another one runs.
  void UpgradeBlobServer();
  void OnKeeperLost(const Status& why);
  void ReplaceKeeper(const std::string& why);
  std::shared_ptr<KeeperClient> keeper() const {
    std::lock_guard lock(mutex_);
    return keeper_;
  }
  void EndAfterInit(const SandboxPtr& sandbox, int wait_status);
  Status WaitInitEnd(Sandbox& sandbox, int64_t timeout_ms);

  // --- node_pause.cc
  Status ResumeOnStrand(const SandboxPtr& sandbox);
  Status FreezeForSnapshot(Sandbox& sandbox, bool* frozen);

  // --- node_snapshot.cc
  Result<SnapshotInfo> SnapshotNew(const SandboxPtr& sandbox, Strand::Turn turn,
                                   const std::string& request_id, bool begun_before);
  // Freezes (a running one), clones, thaws. Strand.
  Result<UniqueFd> CloneFiles(const SandboxPtr& sandbox, const std::string& clone_id,
                              int64_t* frozen_us);
  Status Commit(const SandboxRecord& record, int clone, const std::string& request_id,
                SnapshotInfo* info);
  std::optional<ImageId> FindCommitted(const std::string& sandbox, const std::string& request_id);

  // --- node_open.cc
  Status PrepareDirectories();
  Status LoadDatabase();
  Status LoadSandboxes();
  Status LoadCommands();
  Status LoadEvents();
  Status OpenParts();
  Status Adopt();
  void AdoptOne(const SandboxPtr& sandbox, bool live, std::optional<int> wait_status);
  Status Reconnect(const SandboxPtr& sandbox);
  Status RemoveUnknown(const KeeperClient::Inventory& inventory);
  void RemoveUnknownContainer(const std::string& id);
  void RunOnPool(std::vector<std::function<void()>> tasks);  // and waits for them
  bool Lives(const std::string& id) const;
  void AllowGcWhenSafe();
  Status CloseUppers();

  // --- node_timers.cc
  void Tick();
  void PostExpiry(const SandboxPtr& sandbox, const char* reason);
  void Housekeep();
  void DropOldLogs();

  // --- node_commands.cc (loop thread unless said otherwise)
  struct Reached {
    SandboxPtr sandbox;
    InitClient* init = nullptr;
  };
  // Calls `use` on the loop's thread with a sandbox that runs and is connected (resumed first if it
  // was paused), or with why not. Any thread.
  void Reach(const std::string& id, std::function<void(Result<Reached>)> use);
  void ReachOnLoop(const SandboxPtr& sandbox, bool may_resume,
                   std::function<void(Result<Reached>)> use);
  // Passes `status` on; a lost connection waits until the sandbox's end says why.
  void Explain(const SandboxPtr& sandbox, const Status& status, std::function<void(Status)> done);
  InitClient::Events EventsFor(const SandboxPtr& sandbox);
  void OnDisconnect(const SandboxPtr& sandbox, const Status& why);
  void TakeInventory(const SandboxPtr& sandbox, const InitClient::Inventory& inventory);
  void TakeOver(const SandboxPtr& sandbox, const CommandPtr& command,
                const InitCommandStatus& status);
  void StartNew(const SandboxPtr& sandbox, const CommandSpec& spec,
                std::function<void(Result<CommandInfo>)> done);
  Result<CommandPtr> NewCommand(const SandboxPtr& sandbox, const CommandSpec& spec);
  void LaunchCommand(const SandboxPtr& sandbox, const CommandPtr& command);
  void OnStarted(const SandboxPtr& sandbox, const CommandPtr& command,
                 Result<InitClient::Started> started);
  void Launched(const SandboxPtr& sandbox, const CommandPtr& command,
                const Result<CommandInfo>& result);
  void DropCommand(Sandbox& sandbox, const Command& command);
  void EraseCommand(Sandbox& sandbox, const Command& command);
  void CloseCommand(Sandbox& sandbox);
  void TrimCommands(Sandbox& sandbox);
  Result<CommandPtr> FindCommand(const Sandbox& sandbox, const std::string& command) const;
  InitCommandSpec ToInitSpec(const SandboxInfo& sandbox, const CommandInfo& command) const;

  Store& store_;
  Index& index_;
  const NodeOptions options_;
  Clock* const clock_;
  std::string node_id_, logs_;
  KeeperOptions keeper_options_;

  std::unique_ptr<NodeDb> db_;
  Requests requests_;
  IdRanges ranges_;
  std::unique_ptr<CgroupRoot> cgroups_;
  std::unique_ptr<UpperStore> uppers_;
  std::unique_ptr<LayerCache> layers_;
  std::unique_ptr<BlobServerClient> blob_client_;
  std::unique_ptr<StartProfiler> profiler_;
  NodeCounters counters_;
  // Shared: between a layer's arrival on the node and the container that holds it. Never with
  // another lock held.
  std::shared_mutex layers_in_use_;
  std::shared_ptr<KeeperClient> keeper_;  // guarded by mutex_; see keeper()
  // What the keeper's threads call into; empty once this node goes away.
  struct Gate {
    std::mutex mutex;
    NodeImpl* node = nullptr;
  };
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::atomic<pid_t> keeper_pid_{0};
  std::counting_semaphore<> building_{64};  // creates that are being built at once

  mutable std::mutex mutex_;  // guards sandboxes_, live_, leftovers_ and keeper_
  std::map<std::string, SandboxPtr> sandboxes_;
  size_t live_ = 0;
  std::map<std::string, SandboxPtr> leftovers_;  // ended, but not all of it is removed yet
  std::condition_variable reaped_;               // one of leftovers_ is gone
  size_t open_commands_ = 0;                     // loop thread only: those that hold descriptors

  // Adopted sandboxes whose image was deleted: nothing holds their bytes but that the garbage
  // collector stays off until they have ended.
  std::atomic<int> unleased_{0};
  std::atomic<bool> closing_{false}, draining_{false}, housekeeping_{false};
  int64_t last_housekeeping_ns_ = 0;  // loop thread only
  std::shared_ptr<EventLoop> loop_;
  std::unique_ptr<DbWriter> writer_;
  std::thread loop_thread_;
  // Last, so that their tasks end before what they use.
  std::unique_ptr<WorkerPool> reaper_;
  std::unique_ptr<WorkerPool> pool_;
};

}  // namespace esker
