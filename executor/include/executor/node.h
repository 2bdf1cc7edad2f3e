// Node: the sandboxes of one machine. The one lifecycle behind every API.
//
// State changes of a sandbox are serialised by its own strand (never a global lock held across a
// slow step) and durable in the node's database before they are acknowledged. A node that is opened
// again on the same data directory adopts its living sandboxes and their running commands, collects
// the output and results that came meanwhile, and reports what ended. Time to live is enforced
// here, with every other service down.
//
// Threads: methods may be called from any thread. Those that return Result block (they do file
// system and keeper work) and belong on a worker pool; those that take a callback never block, and
// call back on the node's event loop thread, where callbacks must be quick.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "executor/cgroup.h"
#include "executor/init_client.h"
#include "imagefs/store.h"
#include "snapshotter/index.h"

namespace esker {

enum class SandboxState : uint8_t { kCreating = 1, kRunning = 2, kPaused = 3, kEnded = 4 };

struct SandboxResources {
  double cpu = 0;             // cores; 0: none
  uint64_t memory_bytes = 0;  // 0: default_memory_bytes
  uint64_t disk_bytes = 0;    // 0: default_disk_bytes
  uint64_t pids = 0;          // 0: default_pids
};

struct SandboxSpec {
  std::string image;       // reference as asked for; of what the sandbox's project may see,
  bool any_image = false;  // or of all projects' images
  SandboxResources resources;
  int64_t ttl_ms = 0;             // 0: default_ttl_ms; -1: none
  int64_t idle_ttl_ms = 0;        // 0 or -1: none
  int64_t create_timeout_ms = 0;  // 0: 60,000
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::string> envs;
  std::string project = "default", job;
  std::string hostname;
  std::string
      idempotency_key;     // same key + same spec: the same sandbox; other spec: ALREADY_EXISTS
  std::string request_id;  // the same for one call's retries
};

struct SandboxInfo {
  std::string id;
  ImageId image;
  std::string image_name;
  SandboxState state = SandboxState::kCreating;
  SandboxResources resources;
  std::map<std::string, std::string> metadata, envs;
  std::string project, job, hostname;
  int64_t created_ns = 0, ended_ns = 0;
  int64_t expires_ns = 0;  // wall clock; 0: never
  int64_t idle_ttl_ms = 0;
  std::string end_reason;  // DELETED, TTL, IDLE_TTL, OOM, INIT_DIED, NODE_RESTART, CREATE_FAILED
  std::string end_message;
  ImageConfig config;  // of its image
};

struct SandboxEvent {
  int64_t time_ns = 0;
  std::string what, detail;
};

struct CommandSpec {
  std::string request_id;
  std::vector<std::string> argv;
  std::string shell;
  std::map<std::string, std::string> envs;
  std::string cwd, user, tag;
  bool want_stdin = false, pty = false, background = false;
  uint16_t rows = 24, cols = 80;
  int64_t timeout_ms = 0;
  uint64_t output_limit = 0;  // bytes of each stream kept; 0: 64 MiB
};

struct CommandInfo {
  std::string sandbox_id, id;
  CommandSpec spec;
  InitCommandStatus status;
  bool oom_killed = false;
  uint64_t stdout_bytes = 0, stderr_bytes = 0;  // full sizes so far
  std::string end_reason;  // "" or why the platform ended it (SANDBOX_ENDED: TTL, ...)
};

// Receives a command's output from an offset on. Calls come on the node's loop thread, in order;
// at most one OnOutput is outstanding: the next comes after Subscription::Ready(). Bytes wait in
// the command's log meanwhile; when a follower lags by more than half of the kept window the pipe
// is not read further (the command blocks) until it catches up or leaves.
class CommandObserver {
 public:
  virtual ~CommandObserver() = default;
  // stream 1 = stdout, 2 = stderr. `lost`: bytes before offset that are no longer kept.
  virtual void OnOutput(int stream, uint64_t offset, std::string data, uint64_t lost) = 0;
  // After all output (a short grace is given to children that still hold the pipes). The last call.
  virtual void OnExit(const CommandInfo& info) = 0;
};
class CommandSubscription {
 public:
  virtual ~CommandSubscription() = default;  // no call comes after destruction returned
  virtual void Ready() = 0;                  // any thread
};

struct SnapshotInfo {
  ImageId image;
  uint64_t bytes_stored = 0, bytes_deduplicated = 0;
  int64_t frozen_us = 0;
};
struct ForkChild {
  Status status;  // OK: info is set
  SandboxInfo info;
};
struct PauseInfo {
  SandboxInfo info;
  uint64_t bytes_freed = 0, bytes_kept = 0;
};
struct SandboxUsage {
  CgroupUsage cgroup;
  uint64_t disk_bytes = 0, disk_limit_bytes = 0;
};

struct NodeOptions {
  std::string data_directory;   // node part: DATA/node
  std::string cache_directory;  // DATA/cache: home of the image cache
  // Where the cache lies; none: in its home. And how much may lie there, in real disk blocks;
  // absent: half of those file systems.
  std::vector<std::string> cache_directories;
  std::optional<uint64_t> cache_budget_bytes;
  std::string binary_directory;  // of esker-keeper, esker-imagefs, esker-init
  std::string node_id;           // "" : made once and kept in the data directory
  uint64_t default_memory_bytes = 512ull << 20;
  uint64_t default_disk_bytes = 10ull << 30;
  uint64_t default_pids = 1024;
  int64_t default_ttl_ms = 3'600'000;
  uint64_t upper_pool_bytes = 0;  // size of the upper pool's sparse file; 0: half of the free space
  std::string upper_kind = "auto";
  uint32_t max_sandboxes = 3000;
  Clock* clock = nullptr;
};

struct NodeMetrics;      // executor/node_metrics.h
class BlobServerClient;  // imagefs/blob_server_client.h

class Node {
 public:
  // Starts or finds the keeper, adopts what lives, reaps what is orphaned, then takes leases and
  // enables garbage collection. `store` and `index` must outlive the node.
  static Result<std::unique_ptr<Node>> Open(Store& store, Index& index, const NodeOptions& options);
  // Leaves sandboxes running (a later Open adopts them).
  virtual ~Node() = default;
  // Ends every sandbox, the keeper, the pools: nothing of the node is left in the kernel.
  virtual Status Drain() = 0;

  virtual const std::string& node_id() const = 0;

  virtual Result<SandboxInfo> Create(const SandboxSpec& spec) = 0;
  virtual Result<SandboxInfo> Get(const std::string& id) = 0;
  // In order of id, beginning after `after`; ended ones for a day when asked.
  virtual std::vector<SandboxInfo> List(bool include_ended, const std::string& after, size_t limit,
                                        const std::function<bool(const SandboxInfo&)>& filter) = 0;
  virtual Result<bool> Delete(const std::string& id) = 0;  // value: did it live
  virtual Result<PauseInfo> Pause(const std::string& id) = 0;
  virtual Result<SandboxInfo> Resume(const std::string& id) = 0;
  virtual Result<SandboxInfo> SetTimeout(const std::string& id, int64_t ttl_ms,
                                         int64_t idle_ttl_ms) = 0;
  virtual Result<SnapshotInfo> Snapshot(const std::string& id, const std::string& request_id,
                                        const std::string& tag) = 0;
  virtual Result<std::vector<ForkChild>> Fork(const std::string& id, const std::string& request_id,
                                              uint32_t count, int64_t ttl_ms,
                                              const std::map<std::string, std::string>& metadata,
                                              ImageId* image) = 0;
  virtual Result<SandboxUsage> GetUsage(const std::string& id) = 0;
  virtual Result<std::vector<SandboxEvent>> GetEvents(const std::string& id) = 0;

  // --- commands (never block) -------------------------------------------------------------------
  virtual void StartCommand(const std::string& sandbox, const CommandSpec& spec,
                            std::function<void(Result<CommandInfo>)> done) = 0;
  // The observer must outlive the subscription. NOT_FOUND: no such command.
  virtual Result<std::unique_ptr<CommandSubscription>> Attach(
      const std::string& sandbox, const std::string& command, uint64_t stdout_offset,
      uint64_t stderr_offset, bool want_output, CommandObserver* observer) = 0;
  virtual Result<CommandInfo> GetCommand(const std::string& sandbox,
                                         const std::string& command) = 0;
  virtual Result<std::vector<CommandInfo>> ListCommands(const std::string& sandbox,
                                                        bool include_ended) = 0;
  virtual void SignalCommand(const std::string& sandbox, const std::string& command, int signal,
                             bool whole_tree, std::function<void(Result<bool>)> done) = 0;
  // Total bytes accepted so far. `offset`: see SendStdinRequest; nullopt: append.
  virtual void SendStdin(const std::string& sandbox, const std::string& command, std::string data,
                         bool eof, std::optional<uint64_t> offset,
                         std::function<void(Result<uint64_t>)> done) = 0;
  virtual void ResizeCommand(const std::string& sandbox, const std::string& command, uint16_t rows,
                             uint16_t cols, std::function<void(Status)> done) = 0;

  // --- files (never block): see InitClient::File for `stream`
  // -------------------------------------
  virtual void File(const std::string& sandbox, const InitFileRequest& request, UniqueFd stream,
                    std::function<void(Result<InitFileResult>)> done) = 0;

  struct Stats {
    uint64_t sandboxes = 0;
    pid_t keeper_pid = 0, blob_server_pid = 0;
  };
  virtual Stats GetStats() = 0;
  // For the metrics port. Asks the blob server and the index: may take seconds, never for ever.
  virtual NodeMetrics GetMetrics() = 0;

  // The blob server's control socket, for the care of the cache. Null: there is none.
  virtual BlobServerClient* blob_server() { return nullptr; }

  // After garbage collection: unmounts layers that no sandbox uses and drops their local files when
  // their image is gone. Beside everything else; creates wait for it a moment.
  virtual Status DropUnused() { return OkStatus(); }
};

}  // namespace esker
