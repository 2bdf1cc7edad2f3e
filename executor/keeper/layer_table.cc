#include "layer_table.h"

#include <signal.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/socket.h"
#include "child_process.h"
#include "protocol.h"

namespace esker::keeper {
namespace {

// A node cannot have more descriptors than its hard limit, and every layer is one.
constexpr size_t kMaxMounted = 4096;
constexpr int64_t kMountDeadlineNs = 45'000'000'000;  // beyond the blob server's own retries

// In the child: mounts and sends the outcome.
int MountAndSend(const LayerMountSpec& spec, int socket) {
  Result<LayerMount> mounted = MountLayer(spec);
  WireWriter writer;
  PutStatus(writer, mounted.ok() ? OkStatus() : mounted.status());
  std::vector<int> fds;
  if (mounted.ok()) {
    fds.push_back(mounted->mount.get());
    for (UniqueFd& loop : mounted->loop) {
      if (loop.valid()) fds.push_back(loop.get());
    }
  }
  return SendMessage(socket, writer.data(), fds).ok() ? 0 : 1;
}

Result<std::shared_ptr<const MountedLayer>> ReceiveLayer(int socket) {
  Result<SocketMessage> message = ReceiveMessage(socket);
  if (!message.ok()) return UnavailableError("the helper that mounted it was killed");
  WireReader reader(message->data);
  ESKER_RETURN_IF_ERROR(GetStatus(reader));
  if (message->fds.empty()) return InternalError("the helper sent no mount");
  auto layer = std::make_shared<MountedLayer>();
  layer->mount = std::move(message->fds[0]);
  for (size_t i = 1; i < message->fds.size() && i <= 2; ++i) {
    layer->loop[i - 1] = std::move(message->fds[i]);
  }
  return std::shared_ptr<const MountedLayer>(std::move(layer));
}

}  // namespace

void LayerTable::Get(const KeeperLayer& layer, Ready ready) {
  const std::string served =
      layer.data_blob.empty() ? "" : blobs_directory_ + "/" + layer.data_blob;
  const std::string data = layer.complete_path.empty() ? served : layer.complete_path;
  std::string key = layer.metadata_path + '\n' + data;
  auto it = entries_.find(key);
  if (it != entries_.end() && it->second.layer != nullptr) return ready(it->second.layer);
  if (it != entries_.end()) return it->second.waiting.push_back(std::move(ready));

  if (entries_.size() >= kMaxMounted) DropIdle();
  entries_[key].waiting.push_back(std::move(ready));
  Status started = StartMount(key, {layer.metadata_path, data, served});
  if (!started.ok()) Finish(key, std::move(started));
}

Status LayerTable::StartMount(const std::string& key, const LayerMountSpec& spec) {
  ESKER_ASSIGN_OR_RETURN(auto pair, SeqpacketPair());
  ESKER_ASSIGN_OR_RETURN(Process child,
                         ForkChild([&] { return MountAndSend(spec, pair.second.get()); }));
  auto receiver = std::make_shared<UniqueFd>(std::move(pair.first));
  ESKER_ASSIGN_OR_RETURN(Process killer, Process::Open(child.pid()));
  auto doomed = std::make_shared<Process>(std::move(killer));
  entries_[key].deadline = loop_.After(kMountDeadlineNs, [this, key, doomed] {
    // It may take long to die (it may wait in the kernel), so nobody waits for it.
    Status killed = doomed->Kill(SIGKILL);
    if (!killed.ok()) LogWarning("kill-mount-helper", {{"error", killed.ToString()}});
    Finish(key, DeadlineExceededError("the blob server or the disk did not answer in time"));
  });
  return ReapWhenEnded(loop_, std::move(child), [this, key, receiver](int) {
    Result<std::shared_ptr<const MountedLayer>> layer = ReceiveLayer(receiver->get());
    auto it = entries_.find(key);
    if (it != entries_.end() && it->second.layer == nullptr) Finish(key, std::move(layer));
  });
}

void LayerTable::Finish(const std::string& key,
                        Result<std::shared_ptr<const MountedLayer>> result) {
  auto it = entries_.find(key);
  if (it == entries_.end()) return;
  loop_.Cancel(it->second.deadline);
  std::vector<Ready> waiting = std::move(it->second.waiting);
  if (result.ok()) {
    it->second.waiting.clear();
    it->second.layer = *result;
  } else {
    entries_.erase(it);
    result = result.status().Wrap("mount layer " + key.substr(0, key.find('\n')));
  }
  for (Ready& ready : waiting) ready(result);
}

uint32_t LayerTable::DropIdle() {
  return static_cast<uint32_t>(std::erase_if(entries_, [](const auto& item) {
    return item.second.layer != nullptr && item.second.layer.use_count() == 1;
  }));
}

}  // namespace esker::keeper
