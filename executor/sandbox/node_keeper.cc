// The keeper's connection: its news, and what happens when it is lost.
#include <signal.h>

#include <filesystem>
#include <set>
#include <system_error>

#include "base/log.h"
#include "base/socket.h"
#include "node_impl.h"

namespace esker {

Status NodeImpl::StartKeeper() {
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<KeeperClient> client,
                         KeeperClient::ConnectOrStart(keeper_options_));
  client->OnEnd([gate = gate_](const ContainerEnd& end) {
    std::lock_guard lock(gate->mutex);
    if (gate->node != nullptr) gate->node->OnContainerEnd(end);
  });
  client->OnLost([gate = gate_](const Status& why) {
    std::lock_guard lock(gate->mutex);
    if (gate->node != nullptr) gate->node->OnKeeperLost(why);
  });
  // Who listens on its socket is the keeper.
  Result<UniqueFd> socket = ConnectSeqpacket(options_.data_directory + "/run/keeper.sock");
  if (socket.ok()) {
    Result<PeerCredentials> peer = GetPeerCredentials(socket->get());
    if (peer.ok()) keeper_pid_ = peer->pid;
  }
  // The old client is destroyed with no lock held: it waits for its callbacks, which take this one.
  std::shared_ptr<KeeperClient> old = std::move(client);
  std::lock_guard lock(mutex_);
  std::swap(keeper_, old);
  return OkStatus();
}

void NodeImpl::UpgradeBlobServer() {
  const std::string program = options_.binary_directory + "/esker-imagefs";
  Result<pid_t> pid = keeper()->BlobServerPid();
  if (!pid.ok()) return;  // it is being started
  std::error_code error;
  const std::filesystem::path wanted = std::filesystem::canonical(program, error);
  if (error) return;
  // Of a program that was replaced the kernel says "(deleted)" behind its name.
  const std::string link = "/proc/" + std::to_string(*pid) + "/exe";
  const std::filesystem::path runs = std::filesystem::read_symlink(link, error);
  if (error || runs == wanted) return;
  Status upgraded = keeper()->UpgradeBlobServer(wanted);
  if (upgraded.ok()) {
    LogInfo("blob_server_upgraded", {{"from", runs.string()}, {"to", wanted.string()}});
  } else {
    LogWarning("blob_server_not_upgraded",
               {{"runs", runs.string()}, {"cause", upgraded.ToString()}});
  }
}

Status NodeImpl::DropUnused() {
  // The keeper holds layers until it has seen the end of what used them.
  ESKER_RETURN_IF_ERROR(AwaitReaped());
  std::unique_lock lock(layers_in_use_);
  ESKER_RETURN_IF_ERROR(keeper()->DropIdleLayers().status());
  ESKER_ASSIGN_OR_RETURN(std::vector<ImageRecord> images, index_.ListImages());
  std::vector<ImageLayer> live;
  std::set<ImageId> known;
  for (const ImageRecord& image : images) {
    known.insert(image.id);
    live.insert(live.end(), image.manifest.layers.begin(), image.manifest.layers.end());
  }
  for (const SandboxPtr& sandbox : All()) {
    SandboxRecord record = sandbox->Copy();
    // The files of a deleted image that a sandbox still runs on cannot be told from others.
    if (record.phase != SandboxPhase::kEnded && !known.contains(record.info.image)) {
      return OkStatus();
    }
  }
  return layers_->Retain(live);
}

// Keeper client's thread.
void NodeImpl::OnKeeperLost(const Status& why) {
  if (closing_ || draining_) return;
  Status queued = pool_->Submit([this, text = why.ToString()] { ReplaceKeeper(text); });
  if (!queued.ok()) LogError("replace_keeper", {{"cause", queued.ToString()}});
}

// Its containers went with it. They are ended first, so that the new one starts from nothing.
void NodeImpl::ReplaceKeeper(const std::string& why) {
  LogError("keeper_lost", {{"cause", why}});
  for (const SandboxPtr& sandbox : All()) {
    SandboxPhase phase = sandbox->phase();
    {
      std::lock_guard lock(sandbox->mutex);
      if (!sandbox->init_status) sandbox->init_status = SIGKILL;
    }
    sandbox->init_ended.notify_all();
    if (phase == SandboxPhase::kEnded) {
      Settle(sandbox);
      continue;
    }
    // One that is being created notices by itself.
    if (phase == SandboxPhase::kCreating) continue;
    Result<Strand::Turn> turn = EnterStrand(*sandbox);
    Result<bool> ended = turn.ok() ? End(sandbox, "NODE_RESTART", "its keeper was lost")
                                   : Result<bool>(turn.status());
    if (!ended.ok()) {
      LogError("end_sandbox", {{"sandbox", sandbox->id}, {"cause", ended.status().ToString()}});
    }
  }
  Status started = StartKeeper();
  if (started.ok()) {
    LogInfo("keeper_replaced");
  } else {
    LogError("start_keeper", {{"cause", started.ToString()}});
  }
}

}  // namespace esker
