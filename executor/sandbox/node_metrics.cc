// What the node's metrics port shows.
#include "executor/node_metrics.h"

#include <unistd.h>

#include <charconv>

#include "base/io.h"
#include "node_impl.h"

namespace esker {
namespace {

constexpr uint32_t kBlobsShown = 20;

uint64_t ResidentBytes(pid_t pid) {
  if (pid <= 0) return 0;
  Result<std::string> statm = ReadFileToString("/proc/" + std::to_string(pid) + "/statm");
  if (!statm.ok()) return 0;
  const size_t space = statm->find(' ');
  uint64_t pages = 0;
  if (space != std::string::npos) {
    (void)std::from_chars(statm->data() + space + 1, statm->data() + statm->size(), pages);
  }
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::string StateName(SandboxPhase phase) {
  switch (phase) {
    case SandboxPhase::kCreating:
      return "creating";
    case SandboxPhase::kRunning:
      return "running";
    case SandboxPhase::kPaused:
      return "paused";
    case SandboxPhase::kEnding:
      return "ending";
    case SandboxPhase::kEnded:
      return "ended";
  }
  return "unknown";
}

}  // namespace

NodeMetrics NodeImpl::GetMetrics() {
  NodeMetrics out;
  out.node_id = node_id_;
  for (const char* state : {"creating", "running", "paused", "ending"}) out.sandboxes[state] = 0;
  for (const SandboxPtr& sandbox : All()) {
    const SandboxPhase phase = sandbox->phase();
    if (phase == SandboxPhase::kEnded) continue;
    ++out.sandboxes[StateName(phase)];
    Result<CgroupUsage> usage = cgroups_->GetUsage(sandbox->id);
    if (usage.ok()) out.sandboxes_memory_bytes += usage->memory_bytes;
    std::lock_guard lock(sandbox->mutex);
    for (const auto& [id, command] : sandbox->commands) {
      if (command->Info().status.state == InitCommandState::kRunning) ++out.commands_running;
    }
  }
  out.server_memory_bytes = ResidentBytes(::getpid());
  Stats stats = GetStats();
  out.keeper_memory_bytes = ResidentBytes(stats.keeper_pid);
  out.blob_server_memory_bytes = ResidentBytes(stats.blob_server_pid);
  if (Result<UpperSpace> space = uppers_->Space(); space.ok()) out.uppers = *space;

  out.creates = counters_.creates;
  out.create_failures = counters_.create_failures;
  out.create_latency = counters_.create_latency.Counts();
  {
    std::lock_guard lock(counters_.mutex);
    out.ends = counters_.ends;
  }
  out.commands_started = counters_.commands_started;
  out.commands_not_started = counters_.commands_not_started;
  out.commands_ended = {{"exited_zero", counters_.exited_zero},
                        {"exited_nonzero", counters_.exited_nonzero},
                        {"killed", counters_.killed},
                        {"timed_out", counters_.timed_out}};
  if (Result<BlobServerStats> blobs = blob_client_->GetStats(kBlobsShown); blobs.ok()) {
    out.blob_server = std::move(*blobs);
  }
  if (Result<Index::Stats> index = index_.GetStats(); index.ok()) out.index = *index;
  return out;
}

}  // namespace esker
