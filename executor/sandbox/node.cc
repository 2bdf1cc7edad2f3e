// Looking things up, recording, and the calls that only read.
#include <pthread.h>
#include <signal.h>

#include <future>

#include "base/failpoint.h"
#include "base/io.h"
#include "base/log.h"
#include "node_impl.h"

namespace esker {
namespace {

constexpr uint64_t kEventsKept = 256;
constexpr int64_t kTurnTimeoutMs = 120'000;

}  // namespace

Status EndedError(const SandboxInfo& info) {
  std::string text = "sandbox " + info.id + " has ended (" + info.end_reason + ")";
  if (!info.end_message.empty()) text += ": " + info.end_message;
  return FailedPreconditionError(std::move(text));
}

Result<std::unique_ptr<Node>> Node::Open(Store& store, Index& index, const NodeOptions& options) {
  auto node = std::make_unique<NodeImpl>(store, index, options);
  ESKER_RETURN_IF_ERROR(node->Start());
  return std::unique_ptr<Node>(std::move(node));
}

NodeImpl::NodeImpl(Store& store, Index& index, const NodeOptions& options)
    : store_(store),
      index_(index),
      options_(options),
      clock_(options.clock != nullptr ? options.clock : &Clock::System()),
      logs_(options.data_directory + "/sandboxes"),
      // The last range would hold uid 2^32 - 1, which means "none".
      ranges_((UINT32_MAX - KeeperOptions().first_host_id) / KeeperOptions().range_size - 1) {}

NodeImpl::~NodeImpl() {
  closing_ = true;
  {
    std::lock_guard lock(gate_->mutex);
    gate_->node = nullptr;
  }
  // What runs on the loop from here on sees `closing_` and gives the pool nothing more.
  if (loop_thread_.joinable()) OnLoop([] {});
  // Operations first: they may wait for the loop.
  pool_.reset();
  reaper_.reset();
  if (loop_thread_.joinable()) {
    OnLoop([this] {
      for (const SandboxPtr& sandbox : All()) {
        sandbox->gone = UnavailableError("the node is going away; the sandbox stays");
        sandbox->init.reset();
        std::lock_guard lock(sandbox->mutex);
        for (auto& [id, command] : sandbox->commands) command->Release();
      }
    });
  }
  writer_.reset();
  if (loop_thread_.joinable()) {
    loop_->Stop();
    loop_thread_.join();
  }
}

void NodeImpl::OnLoop(const std::function<void()>& task) {
  if (loop_->InLoopThread()) return task();
  std::promise<void> done;
  loop_->Post([&] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

NodeImpl::SandboxPtr NodeImpl::FindOrNull(const std::string& id) const {
  std::lock_guard lock(mutex_);
  auto it = sandboxes_.find(id);
  return it == sandboxes_.end() ? nullptr : it->second;
}

Result<NodeImpl::SandboxPtr> NodeImpl::Find(const std::string& id) const {
  SandboxPtr sandbox = FindOrNull(id);
  if (sandbox == nullptr) {
    return NotFoundError("no sandbox " + id + " on this node (ended ones are kept for a day)");
  }
  return sandbox;
}

std::vector<NodeImpl::SandboxPtr> NodeImpl::All() const {
  std::lock_guard lock(mutex_);
  std::vector<SandboxPtr> all;
  all.reserve(sandboxes_.size());
  for (const auto& [id, sandbox] : sandboxes_) all.push_back(sandbox);
  return all;
}

Result<Strand::Turn> NodeImpl::EnterStrand(Sandbox& sandbox) {
  Result<Strand::Turn> turn = sandbox.strand.Enter(kTurnTimeoutMs);
  if (!turn.ok()) return std::move(turn).status().Wrap("sandbox " + sandbox.id);
  return turn;
}

void NodeImpl::AddEvent(Sandbox& sandbox, DbBatch& batch, const std::string& what,
                        const std::string& detail) {
  uint64_t number;
  {
    std::lock_guard lock(sandbox.mutex);
    number = sandbox.next_event++;
  }
  batch.Put(EventKey(sandbox.id, number), SerialiseEvent({WallNow(), what, detail}));
  if (number >= kEventsKept) batch.Delete(EventKey(sandbox.id, number - kEventsKept));
}

Status NodeImpl::Record(Sandbox& sandbox, const std::function<void(SandboxRecord&)>& change,
                        const std::string& what, const std::string& detail, DbBatch batch,
                        NodeDb::Durability durability) {
  SandboxRecord before = sandbox.Copy();
  SandboxRecord after = before;
  change(after);
  batch.Put(SandboxKey(sandbox.id), after.Serialise());
  if (!what.empty()) AddEvent(sandbox, batch, what, detail);
  ESKER_RETURN_IF_ERROR(
      db_->Write(batch, durability).Wrap("record " + what + " of sandbox " + sandbox.id));
  // Seen by others only now that it holds. Only the strand's holder changes records.
  std::lock_guard lock(sandbox.mutex);
  sandbox.record = std::move(after);
  return OkStatus();
}

void NodeImpl::NoteEvent(const SandboxPtr& sandbox, const std::string& what,
                         const std::string& detail) {
  writer_->Submit(
      [this, sandbox, what, detail](DbBatch& batch) { AddEvent(*sandbox, batch, what, detail); },
      nullptr);
}

Result<SandboxInfo> NodeImpl::Get(const std::string& id) {
  ESKER_ASSIGN_OR_RETURN(SandboxPtr sandbox, Find(id));
  return sandbox->Info();
}

std::vector<SandboxInfo> NodeImpl::List(bool include_ended, const std::string& after, size_t limit,
                                        const std::function<bool(const SandboxInfo&)>& filter) {
  std::vector<SandboxPtr> candidates;
  {
    std::lock_guard lock(mutex_);
    for (auto it = sandboxes_.upper_bound(after); it != sandboxes_.end(); ++it) {
      candidates.push_back(it->second);
    }
  }
  std::vector<SandboxInfo> found;
  for (const SandboxPtr& sandbox : candidates) {
    if (found.size() >= limit) break;
    SandboxInfo info = sandbox->Info();
    if (info.state == SandboxState::kEnded && !include_ended) continue;
    if (filter && !filter(info)) continue;
    found.push_back(std::move(info));
  }
  return found;
}

Result<SandboxUsage> NodeImpl::GetUsage(const std::string& id) {
  ESKER_ASSIGN_OR_RETURN(SandboxPtr sandbox, Find(id));
  SandboxRecord record = sandbox->Copy();
  if (record.phase == SandboxPhase::kEnded) return EndedError(record.info);
  SandboxUsage usage;
  ESKER_ASSIGN_OR_RETURN(usage.cgroup, cgroups_->GetUsage(id));
  usage.disk_limit_bytes = record.info.resources.disk_bytes;
  Result<UpperUsage> disk = uppers_->GetUsage(id);
  if (disk.ok()) {
    usage.disk_bytes = disk->bytes_used;
    usage.disk_limit_bytes = disk->limit;
  } else if (disk.status().code() != Code::kUnimplemented) {
    return std::move(disk).status().Wrap("disk usage of sandbox " + id);
  }
  return usage;
}

Result<std::vector<SandboxEvent>> NodeImpl::GetEvents(const std::string& id) {
  ESKER_ASSIGN_OR_RETURN(SandboxPtr sandbox, Find(id));
  std::vector<SandboxEvent> events;
  ESKER_RETURN_IF_ERROR(db_->Scan(std::string(kEventPrefix) + id + "/",
                                  [&](std::string_view, std::string_view value) -> Status {
                                    ESKER_ASSIGN_OR_RETURN(SandboxEvent event, ParseEvent(value));
                                    events.push_back(std::move(event));
                                    return OkStatus();
                                  }));
  return events;
}

Node::Stats NodeImpl::GetStats() {
  Stats stats;
  {
    std::lock_guard lock(mutex_);
    stats.sandboxes = live_;
  }
  stats.keeper_pid = keeper_pid_;
  Result<pid_t> blob_server = keeper()->BlobServerPid();
  if (blob_server.ok()) stats.blob_server_pid = *blob_server;
  return stats;
}

Result<SandboxInfo> NodeImpl::SetTimeout(const std::string& id, int64_t ttl_ms,
                                         int64_t idle_ttl_ms) {
  if (ttl_ms < -1 || idle_ttl_ms < -1) {
    return InvalidArgumentError("a time to live is -1 (none), 0 (unchanged) or milliseconds");
  }
  ESKER_ASSIGN_OR_RETURN(SandboxPtr sandbox, Find(id));
  ESKER_ASSIGN_OR_RETURN(Strand::Turn turn, EnterStrand(*sandbox));
  SandboxRecord record = sandbox->Copy();
  if (record.phase == SandboxPhase::kEnded || record.phase == SandboxPhase::kEnding) {
    return EndedError(record.info);
  }
  auto change = [&](SandboxRecord& r) {
    if (ttl_ms > 0) r.info.expires_ns = WallNow() + ttl_ms * 1'000'000;
    if (ttl_ms == -1) r.info.expires_ns = 0;
    if (idle_ttl_ms != 0) r.info.idle_ttl_ms = std::max<int64_t>(0, idle_ttl_ms);
  };
  ESKER_RETURN_IF_ERROR(
      Record(*sandbox, change, "TIMEOUT_SET",
             "ttl_ms=" + std::to_string(ttl_ms) + " idle_ttl_ms=" + std::to_string(idle_ttl_ms)));
  sandbox->Touch();
  return sandbox->Info();
}

}  // namespace esker
