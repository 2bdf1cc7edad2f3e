// Opening a node: what the database says, what the kernel has, and making the two agree.
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <set>

#include "base/id.h"
#include "base/io.h"
#include "base/log.h"
#include "node_impl.h"

namespace esker {
namespace {

constexpr size_t kWorkers = 16;
constexpr size_t kReapers = 4;
constexpr size_t kMaxToReap = 256;  // beyond, whoever ends a sandbox removes what is left himself
constexpr int64_t kKeptNs = 24LL * 3600 * 1'000'000'000;
constexpr int64_t kAdoptTimeoutNs = 20'000'000'000;
constexpr int kKillTimeoutMs = 10'000;
constexpr int64_t kCloseUppersNs = 30'000'000'000;

Result<std::string> ReadOrMakeNodeId(const std::string& directory, const std::string& wanted) {
  std::string path = directory + "/node-id";
  if (PathExists(path)) {
    ESKER_ASSIGN_OR_RETURN(std::string id, ReadFileToString(path, 64));
    ESKER_RETURN_IF_ERROR(CheckIdentifier("node id in " + path, id));
    if (wanted.empty() || wanted == id) return id;
    return FailedPreconditionError("node id " + wanted + " asked for, but " + directory +
                                   " belongs to node " + id);
  }
  std::string id = wanted.empty() ? RandomId().substr(0, 8) : wanted;
  ESKER_RETURN_IF_ERROR(CheckIdentifier("node id", id));
  if (id.size() > 24) return InvalidArgumentError("a node id has at most 24 characters");
  ESKER_RETURN_IF_ERROR(ReplaceFileDurably(path, id));
  return id;
}

// A running command holds five descriptors; the usual soft limit of 1,024 is soon reached.
void RaiseDescriptorLimit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) LogWarning("descriptor_limit", {{"errno", errno}});
}

// "<prefix><sandbox>/<rest>"
std::string SandboxOfKey(std::string_view key, std::string_view prefix) {
  key.remove_prefix(prefix.size());
  return std::string(key.substr(0, key.find('/')));
}

}  // namespace

Status NodeImpl::Start() {
  RaiseDescriptorLimit();
  ESKER_RETURN_IF_ERROR(PrepareDirectories());
  ESKER_ASSIGN_OR_RETURN(db_, NodeDb::Open(options_.data_directory + "/db"));
  // A limit that is never reached: see Strand.
  pool_ = std::make_unique<WorkerPool>(kWorkers, SIZE_MAX);
  reaper_ = std::make_unique<WorkerPool>(kReapers, kMaxToReap);
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<EventLoop> loop, EventLoop::Create());
  loop_ = std::move(loop);
  writer_ = std::make_unique<DbWriter>(*db_);
  loop_thread_ = std::thread([this] {
    // A command that closes its stdin must not end the server.
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    loop_->Run();
  });
  ESKER_RETURN_IF_ERROR(LoadDatabase());
  ESKER_RETURN_IF_ERROR(OpenParts());
  ESKER_RETURN_IF_ERROR(Adopt());
  last_housekeeping_ns_ = Clock::System().MonotonicNanos();
  loop_->Post([this] { Tick(); });
  AllowGcWhenSafe();
  return OkStatus();
}

Status NodeImpl::PrepareDirectories() {
  ESKER_RETURN_IF_ERROR(MakeDirectories(options_.data_directory));
  ESKER_RETURN_IF_ERROR(MakeDirectories(logs_));
  ESKER_ASSIGN_OR_RETURN(node_id_, ReadOrMakeNodeId(options_.data_directory, options_.node_id));
  return OkStatus();
}

Status NodeImpl::OpenParts() {
  ESKER_ASSIGN_OR_RETURN(cgroups_, CgroupRoot::Open("esker-" + node_id_));
  UpperStoreOptions uppers;
  uppers.directory = options_.data_directory + "/uppers";
  if (options_.upper_pool_bytes != 0) uppers.pool_bytes = options_.upper_pool_bytes;
  if (options_.upper_kind == "btrfs") {
    uppers.kind = UpperKind::kBtrfs;
  } else if (options_.upper_kind == "plain") {
    uppers.kind = UpperKind::kPlain;
  } else if (options_.upper_kind != "auto") {
    return InvalidArgumentError("upper kind '" + options_.upper_kind +
                                "': want auto, btrfs or plain");
  }
  ESKER_ASSIGN_OR_RETURN(uppers_, UpperStore::Open(uppers));
  ESKER_ASSIGN_OR_RETURN(
      layers_, LayerCache::Open(options_.cache_directory,
                                {options_.cache_directories, options_.cache_budget_bytes}, store_,
                                [this](const BlobId& id) { return index_.GetBlobMap(id); }));
  blob_client_ = BlobServerClient::Create(BlobServerSocket(options_.data_directory));
  profiler_ = std::make_unique<StartProfiler>(store_, *blob_client_);
  keeper_options_.data_directory = options_.data_directory;
  keeper_options_.store_directory = store_.path();
  keeper_options_.cache_directory = options_.cache_directory;
  keeper_options_.binary_directory = options_.binary_directory;
  gate_->node = this;
  ESKER_RETURN_IF_ERROR(StartKeeper());
  UpgradeBlobServer();
  return OkStatus();
}

// --- the database -------------------------------------------------------------------------------

Status NodeImpl::LoadDatabase() {
  ESKER_RETURN_IF_ERROR(LoadSandboxes());
  ESKER_RETURN_IF_ERROR(LoadCommands());
  ESKER_RETURN_IF_ERROR(LoadEvents());
  int64_t before = WallNow() - kKeptNs;
  return db_->Scan(kRequestPrefix, [&](std::string_view key, std::string_view value) {
    Result<RequestRecord> request = RequestRecord::Parse(value);
    if (!request.ok()) {
      LogError("load_request", {{"key", std::string(key)}, {"cause", request.status().ToString()}});
    } else if (request->time_ns >= before) {
      requests_.Restore(std::string(key), std::move(*request));
    }
    return OkStatus();
  });
}

Status NodeImpl::LoadSandboxes() {
  return db_->Scan(kSandboxPrefix, [&](std::string_view key, std::string_view value) -> Status {
    Result<SandboxRecord> record = SandboxRecord::Parse(value);
    if (!record.ok()) {
      // What it names is then unknown, and removed as such; the others must live.
      LogError("load_sandbox", {{"key", std::string(key)}, {"cause", record.status().ToString()}});
      return OkStatus();
    }
    auto sandbox = std::make_shared<Sandbox>(*pool_, std::move(*record));
    const SandboxRecord& loaded = sandbox->record;
    if (loaded.phase != SandboxPhase::kEnded) {
      Status taken = ranges_.TakeNumber(loaded.range);
      sandbox->has_range = taken.ok();
      if (!taken.ok()) {
        LogError("load_sandbox", {{"sandbox", sandbox->id}, {"cause", taken.ToString()}});
      }
    }
    std::lock_guard lock(mutex_);
    if (loaded.phase != SandboxPhase::kEnded) ++live_;
    sandboxes_[sandbox->id] = std::move(sandbox);
    return OkStatus();
  });
}

Status NodeImpl::LoadCommands() {
  return db_->Scan(kCommandPrefix, [&](std::string_view key, std::string_view value) -> Status {
    Result<CommandRecord> record = CommandRecord::Parse(value);
    if (!record.ok()) {
      LogError("load_command", {{"key", std::string(key)}, {"cause", record.status().ToString()}});
      return OkStatus();
    }
    SandboxPtr sandbox = FindOrNull(record->info.sandbox_id);
    if (sandbox == nullptr) return OkStatus();
    std::string id = record->info.id, request = record->info.spec.request_id;
    auto command =
        std::make_shared<Command>(*this, std::move(*record), LogDirectory(sandbox->id) + "/" + id);
    std::lock_guard lock(sandbox->mutex);
    sandbox->commands[id] = std::move(command);
    if (!request.empty()) sandbox->command_of_request[request] = id;
    return OkStatus();
  });
}

Status NodeImpl::LoadEvents() {
  return db_->Scan(kEventPrefix, [&](std::string_view key, std::string_view) -> Status {
    SandboxPtr sandbox = FindOrNull(SandboxOfKey(key, kEventPrefix));
    if (sandbox == nullptr) return OkStatus();
    std::string number(key.substr(key.rfind('/') + 1));
    std::lock_guard lock(sandbox->mutex);
    sandbox->next_event =
        std::max<uint64_t>(sandbox->next_event, std::strtoull(number.c_str(), nullptr, 16) + 1);
    return OkStatus();
  });
}

// --- adoption -----------------------------------------------------------------------------------

void NodeImpl::RunOnPool(std::vector<std::function<void()>> tasks) {
  std::mutex mutex;
  std::condition_variable all_done;
  size_t left = tasks.size();
  for (std::function<void()>& task : tasks) {
    auto run = [&mutex, &all_done, &left, task = std::move(task)] {
      task();
      std::lock_guard lock(mutex);
      if (--left == 0) all_done.notify_one();
    };
    if (!pool_->Submit(run).ok()) run();
  }
  std::unique_lock lock(mutex);
  all_done.wait(lock, [&] { return left == 0; });
}

bool NodeImpl::Lives(const std::string& id) const {
  SandboxPtr sandbox = FindOrNull(id);
  return sandbox != nullptr && sandbox->phase() != SandboxPhase::kEnded;
}

Status NodeImpl::Adopt() {
  ESKER_ASSIGN_OR_RETURN(KeeperClient::Inventory inventory, keeper()->List());
  std::set<std::string> live;
  for (const ContainerHandle& container : inventory.live) live.insert(container.sandbox_id);
  std::map<std::string, int> ended;
  for (const ContainerEnd& end : inventory.ended) ended[end.sandbox_id] = end.wait_status;

  std::vector<std::function<void()>> tasks;
  std::set<std::string> recorded;
  for (const SandboxPtr& sandbox : All()) {
    if (sandbox->phase() == SandboxPhase::kEnded) continue;
    recorded.insert(sandbox->id);
    std::optional<int> status;
    if (auto it = ended.find(sandbox->id); it != ended.end()) status = it->second;
    bool lives = live.contains(sandbox->id);
    tasks.push_back([this, sandbox, lives, status] { AdoptOne(sandbox, lives, status); });
  }
  size_t count = tasks.size();
  RunOnPool(std::move(tasks));
  ESKER_RETURN_IF_ERROR(AwaitReaped());
  // What was recorded has been dealt with; the inventory was taken before that.
  std::erase_if(inventory.live,
                [&](const ContainerHandle& c) { return recorded.contains(c.sandbox_id); });
  ESKER_RETURN_IF_ERROR(RemoveUnknown(inventory));
  std::lock_guard lock(mutex_);
  if (count != 0) LogInfo("adopted", {{"recorded", count}, {"alive", live_}});
  return OkStatus();
}

// Pool thread.
void NodeImpl::AdoptOne(const SandboxPtr& sandbox, bool live, std::optional<int> wait_status) {
  Result<Strand::Turn> turn = EnterStrand(*sandbox);
  if (!turn.ok()) return;
  SandboxRecord record = sandbox->Copy();
  sandbox->with_keeper = live || wait_status.has_value();
  if (wait_status) {
    std::lock_guard lock(sandbox->mutex);
    sandbox->init_status = wait_status;
  }
  std::string reason = "NODE_RESTART", message;
  if (record.phase == SandboxPhase::kCreating) {
    reason = "CREATE_FAILED";
    message = "the node was restarted while it was being created";
    std::vector<std::string> keys;
    for (const std::string& key : record.request_keys) {
      if (!key.empty()) keys.push_back(key);
    }
    requests_.GiveUp(keys);
  } else if (record.phase != SandboxPhase::kEnding && live) {
    Status connected = Reconnect(sandbox);
    if (connected.ok()) return;
    reason = "INIT_DIED";
    message = "it could not be adopted: " + connected.ToString();
  } else if (record.phase != SandboxPhase::kEnding && wait_status) {
    return EndAfterInit(sandbox, *wait_status);
  } else {
    message = record.boot_id == BootId() ? "its keeper was lost" : "the machine was restarted";
  }
  Result<bool> ended = End(sandbox, reason, message);
  if (!ended.ok()) {
    LogError("end_sandbox", {{"sandbox", sandbox->id}, {"cause", ended.status().ToString()}});
  }
}

Status NodeImpl::Reconnect(const SandboxPtr& sandbox) {
  SandboxRecord record = sandbox->Copy();
  Result<std::unique_ptr<Lease>> lease =
      index_.LeaseImage(record.info.image, "sandbox " + sandbox->id);
  if (lease.ok()) {
    sandbox->lease = std::move(*lease);
  } else if (lease.status().code() == Code::kNotFound) {
    sandbox->unleased = true;
    ++unleased_;
  } else {
    return std::move(lease).status();
  }
  Result<CgroupUsage> usage = cgroups_->GetUsage(sandbox->id);
  if (usage.ok()) sandbox->oom_kills = usage->oom_kills;
  sandbox->Touch();
  // A paused one stays so; its init is asked when it is resumed.
  if (record.phase == SandboxPhase::kPaused) return OkStatus();
  // A crash in the middle of a snapshot, pause or resume may have left it frozen.
  ESKER_RETURN_IF_ERROR(cgroups_->Thaw(sandbox->id));
  ESKER_RETURN_IF_ERROR(ConnectInit(sandbox, Clock::System().MonotonicNanos() + kAdoptTimeoutNs));
  NoteEvent(sandbox, "ADOPTED", "");
  return OkStatus();
}

void NodeImpl::AllowGcWhenSafe() {
  if (unleased_ == 0) {
    index_.EnableGc();
  } else {
    LogWarning("gc_stays_off",
               {{"why", "sandboxes of deleted images live"}, {"sandboxes", unleased_.load()}});
  }
}

// --- what nobody knows --------------------------------------------------------------------------

void NodeImpl::RemoveUnknownContainer(const std::string& id) {
  Status status = cgroups_->KillAll(id, kKillTimeoutMs);
  if (status.ok() || status.code() == Code::kNotFound) status = cgroups_->Remove(id);
  if (!status.ok()) {
    LogError("remove_unknown_sandbox", {{"sandbox", id}, {"cause", status.ToString()}});
    return;
  }
  LogWarning("removed_unknown_sandbox", {{"sandbox", id}});
}

Status NodeImpl::RemoveUnknown(const KeeperClient::Inventory& inventory) {
  std::set<std::string> unknown;
  for (const ContainerHandle& container : inventory.live) {
    if (!Lives(container.sandbox_id)) unknown.insert(container.sandbox_id);
  }
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> groups, cgroups_->List());
  for (const std::string& id : groups) {
    if (!Lives(id)) unknown.insert(id);
  }
  std::vector<std::function<void()>> tasks;
  for (const std::string& id : unknown) tasks.push_back([this, id] { RemoveUnknownContainer(id); });
  RunOnPool(std::move(tasks));
  for (const ContainerHandle& container : inventory.live) {
    if (!unknown.contains(container.sandbox_id)) continue;
    ESKER_RETURN_IF_ERROR(
        Process::FromPidfd(container.init.pid, UniqueFd(::dup(container.pidfd.get())))
            .WaitExit(kKillTimeoutMs)
            .Wrap("end unknown container " + container.sandbox_id));
  }
  std::set<std::string> to_acknowledge = unknown;
  for (const ContainerEnd& end : inventory.ended) {
    if (!Lives(end.sandbox_id)) to_acknowledge.insert(end.sandbox_id);
  }
  for (const std::string& id : to_acknowledge) {
    Status status = keeper()->AcknowledgeEnd(id);
    if (!status.ok() && status.code() != Code::kNotFound) {
      LogWarning("acknowledge_end", {{"sandbox", id}, {"cause", status.ToString()}});
    }
  }
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> volumes, uppers_->List());
  for (const std::string& id : volumes) {
    if (!Lives(id)) ESKER_RETURN_IF_ERROR(uppers_->Delete(id));
  }
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> logs, ListDirectory(logs_));
  for (const std::string& id : logs) {
    if (FindOrNull(id) == nullptr) ESKER_RETURN_IF_ERROR(RemoveTree(LogDirectory(id)));
  }
  return OkStatus();
}

// --- leaving nothing ----------------------------------------------------------------------------

// A mount namespace that was copied from ours meanwhile (anybody's) holds the pool until it ends.
Status NodeImpl::CloseUppers() {
  int64_t deadline = Clock::System().MonotonicNanos() + kCloseUppersNs;
  Status closed = uppers_->Close();
  while (closed.code() == Code::kFailedPrecondition &&
         Clock::System().MonotonicNanos() < deadline) {
    closed = uppers_->Close();
  }
  if (closed.ok()) uppers_.reset();
  return closed;
}

Status NodeImpl::Drain() {
  {
    std::lock_guard lock(mutex_);
    draining_ = true;
  }
  std::vector<std::function<void()>> tasks;
  for (const SandboxPtr& sandbox : All()) {
    if (sandbox->phase() == SandboxPhase::kEnded) continue;
    sandbox->cancelled = true;
    tasks.push_back([this, sandbox] {
      Result<Strand::Turn> turn = EnterStrand(*sandbox);
      Result<bool> ended =
          turn.ok() ? End(sandbox, "DELETED", "the node was drained") : Result<bool>(turn.status());
      if (!ended.ok()) {
        LogError("drain", {{"sandbox", sandbox->id}, {"cause", ended.status().ToString()}});
      }
    });
  }
  RunOnPool(std::move(tasks));
  size_t left;
  {
    std::lock_guard lock(mutex_);
    left = live_;
  }
  if (left != 0) {
    return InternalError(std::to_string(left) + " sandboxes could not be ended; see the log");
  }
  ESKER_RETURN_IF_ERROR(AwaitReaped());
  ESKER_RETURN_IF_ERROR(keeper()->Shutdown());
  ESKER_RETURN_IF_ERROR(cgroups_->Close());
  ESKER_RETURN_IF_ERROR(CloseUppers());
  return UpperStore::Destroy(options_.data_directory + "/uppers");
}

}  // namespace esker
