// What happens by itself: time to live, and the removal of what is kept for a day.
#include <sys/stat.h>

#include <algorithm>

#include "base/io.h"
#include "base/log.h"
#include "node_impl.h"

namespace esker {
namespace {

constexpr int64_t kTickNs = 100'000'000;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kHousekeepingNs = 60 * kSecond;
constexpr int64_t kKeptNs = 24 * 3600 * kSecond;
constexpr size_t kMaxEnded = 50'000;
constexpr uint64_t kEndedLogBytes = 4ull << 30;  // output of ended sandboxes, all together

uint64_t BytesOnDisk(const std::string& directory) {
  uint64_t bytes = 0;
  Result<std::vector<std::string>> names = ListDirectory(directory);
  if (!names.ok()) return 0;
  for (const std::string& name : *names) {
    struct stat st;
    if (::lstat((directory + "/" + name).c_str(), &st) == 0) {
      bytes += static_cast<uint64_t>(st.st_blocks) * 512;
    }
  }
  return bytes;
}

// Sandbox::mutex is held.
bool HasForegroundCommand(const Sandbox& sandbox) {
  for (const auto& [id, command] : sandbox.commands) {
    CommandInfo info = command->Info();
    if (info.status.state == InitCommandState::kRunning && !info.spec.background) return true;
  }
  return false;
}

}  // namespace

// Loop thread.
void NodeImpl::Tick() {
  if (closing_) return;
  int64_t wall = WallNow();
  int64_t now = Clock::System().MonotonicNanos();
  std::vector<SandboxPtr> expired, idle;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, sandbox] : sandboxes_) {
      std::lock_guard sandbox_lock(sandbox->mutex);
      const SandboxRecord& record = sandbox->record;
      if (record.phase != SandboxPhase::kRunning && record.phase != SandboxPhase::kPaused) continue;
      const SandboxInfo& info = record.info;
      if (info.expires_ns != 0 && wall >= info.expires_ns) {
        expired.push_back(sandbox);
      } else if (info.idle_ttl_ms > 0 &&
                 now - sandbox->last_used_ns >= info.idle_ttl_ms * 1'000'000 &&
                 sandbox->calls_in_flight == 0 && !HasForegroundCommand(*sandbox)) {
        idle.push_back(sandbox);
      }
    }
  }
  for (const SandboxPtr& sandbox : expired) PostExpiry(sandbox, "TTL");
  for (const SandboxPtr& sandbox : idle) PostExpiry(sandbox, "IDLE_TTL");
  if (now - last_housekeeping_ns_ > kHousekeepingNs && !housekeeping_.exchange(true)) {
    last_housekeeping_ns_ = now;
    Status queued = pool_->Submit([this] {
      Housekeep();
      housekeeping_ = false;
    });
    if (!queued.ok()) housekeeping_ = false;
  }
  loop_->After(kTickNs, [this] { Tick(); });
}

void NodeImpl::PostExpiry(const SandboxPtr& sandbox, const char* reason) {
  if (sandbox->end_posted.exchange(true)) return;
  sandbox->strand.Post([this, sandbox, reason] {
    // Its time may have been extended while this waited for its turn.
    SandboxInfo info = sandbox->Info();
    bool ttl = std::string_view(reason) == "TTL";
    int64_t idle_ns = Clock::System().MonotonicNanos() - sandbox->last_used_ns;
    bool due = ttl ? info.expires_ns != 0 && WallNow() >= info.expires_ns
                   : info.idle_ttl_ms > 0 && idle_ns >= info.idle_ttl_ms * 1'000'000;
    sandbox->end_posted = false;
    if (!due) return;
    Result<bool> ended =
        End(sandbox, reason,
            ttl ? "its time to live was over" : "it was not used for its idle time to live");
    if (!ended.ok()) {
      LogError("end_sandbox", {{"sandbox", sandbox->id}, {"cause", ended.status().ToString()}});
    }
  });
}

// Pool thread.
void NodeImpl::Housekeep() {
  int64_t before = WallNow() - kKeptNs;
  DbBatch batch;
  for (const std::string& key : requests_.Expire(before)) batch.Delete(key);
  RetryReaping();
  std::vector<int64_t> ends;
  for (const SandboxPtr& sandbox : All()) {
    SandboxInfo info = sandbox->Info();
    if (info.state == SandboxState::kEnded) ends.push_back(info.ended_ns);
  }
  if (ends.size() > kMaxEnded) {
    std::sort(ends.begin(), ends.end());
    before = std::max(before, ends[ends.size() - kMaxEnded]);
  }
  for (const SandboxPtr& sandbox : All()) {
    SandboxRecord record = sandbox->Copy();
    if (record.phase == SandboxPhase::kEnding) PostEnd(sandbox, "", "");
    if (record.phase != SandboxPhase::kEnded || record.info.ended_ns >= before) continue;
    Status removed = RemoveTree(LogDirectory(sandbox->id));
    if (!removed.ok()) {
      LogWarning("remove_logs", {{"sandbox", sandbox->id}, {"cause", removed.ToString()}});
      continue;
    }
    batch.Delete(SandboxKey(sandbox->id));
    std::lock_guard lock(mutex_);
    sandboxes_.erase(sandbox->id);
    std::lock_guard sandbox_lock(sandbox->mutex);
    for (const auto& [id, command] : sandbox->commands) batch.Delete(CommandKey(sandbox->id, id));
    uint64_t first = sandbox->next_event > 512 ? sandbox->next_event - 512 : 0;
    for (uint64_t i = first; i < sandbox->next_event; ++i) batch.Delete(EventKey(sandbox->id, i));
  }
  if (!batch.empty()) {
    Status written = db_->Write(batch, NodeDb::Durability::kSynced);
    if (!written.ok()) LogWarning("housekeeping", {{"cause", written.ToString()}});
  }
  DropOldLogs();
}

void NodeImpl::DropOldLogs() {
  struct Ended {
    int64_t when;
    std::string id;
  };
  std::vector<Ended> ended;
  for (const SandboxPtr& sandbox : All()) {
    SandboxInfo info = sandbox->Info();
    if (info.state == SandboxState::kEnded) ended.push_back({info.ended_ns, sandbox->id});
  }
  std::sort(ended.begin(), ended.end(),
            [](const Ended& a, const Ended& b) { return a.when > b.when; });
  uint64_t kept = 0;
  for (const Ended& one : ended) {
    uint64_t bytes = BytesOnDisk(LogDirectory(one.id));
    if (kept + bytes <= kEndedLogBytes) {
      kept += bytes;
      continue;
    }
    Status removed = RemoveTree(LogDirectory(one.id));
    if (!removed.ok()) {
      LogWarning("remove_logs", {{"sandbox", one.id}, {"cause", removed.ToString()}});
    }
  }
}

}  // namespace esker
