#include "network_pool.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "base/io.h"
#include "base/log.h"
#include "base/socket.h"
#include "child_process.h"
#include "loopback.h"

namespace esker::keeper {
namespace {

// In the child: `count` namespaces, one message each.
int MakeNamespaces(size_t count, int socket) {
  setpriority(PRIO_PROCESS, 0, 10);  // ahead of need, so after all that is needed now
  UniqueFd proc(OpenOwnProc());
  if (!proc.valid()) return errno;
  for (size_t i = 0; i < count; ++i) {
    if (unshare(CLONE_NEWNET) != 0 || SetUpLoopback(proc.get()) != nullptr) return errno;
    Result<UniqueFd> ns = OpenFile("/proc/self/ns/net", O_RDONLY);
    if (!ns.ok()) return ns.status().error_number();
    Status sent = SendMessage(socket, "n", {ns->get()});
    if (!sent.ok()) return sent.error_number();
  }
  return 0;
}

}  // namespace

UniqueFd NetworkPool::Take() {
  UniqueFd taken;
  if (!ready_.empty()) {
    taken = std::move(ready_.back());
    ready_.pop_back();
  }
  if (ready_.size() <= size_ / 2) Refill();
  return taken;
}

void NetworkPool::Refill() {
  if (helper_.valid() || stopping_) return;
  auto pair = SeqpacketPair();
  if (!pair.ok()) return LogWarning("network-pool", {{"error", pair.status().ToString()}});
  size_t count = size_ - ready_.size();
  Result<Process> child = ForkChild([&] { return MakeNamespaces(count, pair->second.get()); });
  if (!child.ok()) return LogWarning("network-pool", {{"error", child.status().ToString()}});
  Result<Process> helper = Process::Open(child->pid());
  if (helper.ok()) helper_ = std::move(*helper);
  auto receiver = std::make_shared<UniqueFd>(std::move(pair->first));
  // Collected when the child has ended; the messages wait in the socket.
  Status watched = ReapWhenEnded(loop_, std::move(*child), [this, receiver](int status) {
    helper_ = Process();
    Collect(receiver->get());
    if (status != 0) LogWarning("network-pool", {{"wait_status", status}});
  });
  if (!watched.ok()) LogWarning("network-pool", {{"error", watched.ToString()}});
}

void NetworkPool::Stop() {
  stopping_ = true;
  if (!helper_.valid()) return;
  Status ended = helper_.Kill(SIGKILL);
  if (ended.ok()) ended = helper_.WaitExit(5'000);
  if (!ended.ok()) LogWarning("network-pool", {{"error", ended.ToString()}});
}

void NetworkPool::Collect(int socket) {
  while (ready_.size() < size_) {
    Result<SocketMessage> message = ReceiveMessage(socket);
    if (!message.ok() || message->fds.empty()) return;
    ready_.push_back(std::move(message->fds[0]));
  }
}

}  // namespace esker::keeper
