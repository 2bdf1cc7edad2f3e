#include "executor/keeper_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/io.h"
#include "base/socket.h"
#include "keeper_start.h"
#include "protocol.h"

namespace esker {
namespace keeper {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kShortDeadline = 30'000 * kMs;
constexpr int64_t kCreateDeadline = 120'000 * kMs;  // layer mount and build have their own, shorter
constexpr int kEndDeadlineMs = 20'000;

// The directory as the root of a mount that hangs nowhere: usable in the keeper's mount namespace,
// and `..` of it leads nowhere.
Result<UniqueFd> Detached(int fd, const char* what) {
  UniqueFd tree(open_tree(fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH));
  if (tree.valid()) return tree;
  return ErrnoError(std::string("detach ") + what);
}

class SocketKeeperClient : public KeeperClient {
 public:
  SocketKeeperClient(UniqueFd socket, UniqueFd wakeup, Process keeper)
      : socket_(std::move(socket)), wakeup_(std::move(wakeup)), keeper_(std::move(keeper)) {
    reader_ = std::thread([this] { ReadLoop(); });
  }
  ~SocketKeeperClient() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    Wake();
    reader_.join();
  }

  Status Greet(const KeeperOptions& options);
  Result<ContainerHandle> Create(const ContainerSpec& spec, int volume_fd, int listen_fd,
                                 const std::vector<int>& cgroup_tasks, int cgroup_unified) override;
  Result<Inventory> List() override;
  Status AcknowledgeEnd(const std::string& sandbox_id) override;
  void AcknowledgeEndLater(const std::string& sandbox_id) override;
  void OnEnd(std::function<void(const ContainerEnd&)> callback) override;
  void OnLost(std::function<void(const Status&)> callback) override;
  Result<uint32_t> DropIdleLayers() override;
  Result<pid_t> BlobServerPid() override;
  Status ReplaceBlobServer() override;
  Status UpgradeBlobServer(const std::string& program) override;
  Status Shutdown() override;

 private:
  struct Answer {
    std::string body;  // behind the status
    std::vector<UniqueFd> fds;
  };
  struct Waiter {
    bool done = false;
    Status status;
    Answer answer;
    std::condition_variable ready;
  };

  Result<Answer> Call(Kind kind, std::string_view body, const std::vector<int>& fds = {},
                      int64_t deadline_ns = kShortDeadline);
  Status Send(Kind kind, uint64_t id, std::string_view body, const std::vector<int>& fds);
  void ReadLoop();
  Status ReadOne();
  void DeliverEnds();
  void Lose(const Status& why);
  void Wake() {
    uint64_t one = 1;
    ssize_t ignored = write(wakeup_.get(), &one, sizeof(one));
    (void)ignored;
  }

  UniqueFd socket_, wakeup_;
  Process keeper_;
  std::mutex send_mutex_;  // one message at a time; taken before nothing else
  std::mutex mutex_;       // guards all below; never held while a callback runs
  uint64_t next_id_ = 1;
  std::map<uint64_t, Waiter*> waiting_;
  std::vector<ContainerEnd> ends_;  // not delivered yet
  std::function<void(const ContainerEnd&)> on_end_;
  std::function<void(const Status&)> on_lost_;
  Status lost_;
  bool stopping_ = false;
  std::thread reader_;
};

Result<SocketKeeperClient::Answer> SocketKeeperClient::Call(Kind kind, std::string_view body,
                                                            const std::vector<int>& fds,
                                                            int64_t deadline_ns) {
  Waiter waiter;
  uint64_t id;
  {
    std::lock_guard lock(mutex_);
    if (!lost_.ok()) return lost_;
    id = next_id_++;
    waiting_[id] = &waiter;
  }
  Status sent = Send(kind, id, body, fds);
  std::unique_lock lock(mutex_);
  if (!sent.ok()) {
    waiting_.erase(id);
    return lost_.ok() ? sent.Wrap("ask the keeper") : lost_;
  }
  waiter.ready.wait_for(lock, std::chrono::nanoseconds(deadline_ns), [&] { return waiter.done; });
  waiting_.erase(id);
  if (!waiter.done) {
    return DeadlineExceededError("the keeper did not answer within " +
                                 std::to_string(deadline_ns / kMs) + " ms");
  }
  if (!waiter.status.ok()) return waiter.status;
  return std::move(waiter.answer);
}

Status SocketKeeperClient::Send(Kind kind, uint64_t id, std::string_view body,
                                const std::vector<int>& fds) {
  WireWriter writer;
  PutHeader(writer, kind, id);
  writer.PutRaw(body);
  std::lock_guard lock(send_mutex_);
  return SendMessage(socket_.get(), writer.data(), fds);
}

void SocketKeeperClient::ReadLoop() {
  for (;;) {
    pollfd fds[2] = {{socket_.get(), POLLIN, 0}, {wakeup_.get(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) return Lose(ErrnoError("poll"));
    if (fds[1].revents != 0) {
      uint64_t count;
      ssize_t ignored = read(wakeup_.get(), &count, sizeof(count));
      (void)ignored;
    }
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    if (fds[0].revents != 0) {
      Status read = ReadOne();
      if (!read.ok()) {
        DeliverEnds();
        return Lose(read);
      }
    }
    DeliverEnds();
  }
}

Status SocketKeeperClient::ReadOne() {
  ESKER_ASSIGN_OR_RETURN(SocketMessage message, ReceiveMessage(socket_.get()));
  WireReader reader(message.data);
  Header header = GetHeader(reader);
  if (header.kind == Kind::kEnded) {
    ContainerEnd end = GetEnd(reader);
    ESKER_RETURN_IF_ERROR(reader.Finish("the keeper's notice of an end"));
    std::lock_guard lock(mutex_);
    ends_.push_back(std::move(end));
    return OkStatus();
  }
  Status status = GetStatus(reader);
  if (!reader.ok() || header.kind != Kind::kReply) {
    return DataLossError("the keeper sent what is no reply");
  }
  std::lock_guard lock(mutex_);
  auto it = waiting_.find(header.id);
  if (it == waiting_.end()) return OkStatus();  // the caller's deadline was sooner
  it->second->status = std::move(status);
  it->second->answer = {std::string(reader.GetRaw(reader.remaining())), std::move(message.fds)};
  it->second->done = true;
  it->second->ready.notify_one();
  waiting_.erase(it);  // a connection lost right after must not change what came
  return OkStatus();
}

void SocketKeeperClient::DeliverEnds() {
  std::vector<ContainerEnd> ends;
  std::function<void(const ContainerEnd&)> callback;
  {
    std::lock_guard lock(mutex_);
    if (!on_end_) return;
    ends.swap(ends_);
    callback = on_end_;
  }
  for (const ContainerEnd& end : ends) callback(end);
}

void SocketKeeperClient::Lose(const Status& why) {
  std::function<void(const Status&)> callback;
  Status lost = why.Wrap("the connection to the keeper was lost").WithCode(Code::kUnavailable);
  {
    std::lock_guard lock(mutex_);
    lost_ = lost;
    callback = on_lost_;
    for (auto& [id, waiter] : waiting_) {
      waiter->status = lost;
      waiter->done = true;
      waiter->ready.notify_one();
    }
  }
  if (callback) callback(lost);
}

Status SocketKeeperClient::Greet(const KeeperOptions& options) {
  Hello mine;
  mine.first_host_id = options.first_host_id;
  mine.range_size = options.range_size;
  mine.store_directory = options.store_directory;
  mine.cache_directory = options.cache_directory;
  WireWriter body;
  PutHello(body, mine);
  ESKER_ASSIGN_OR_RETURN(Answer answer, Call(Kind::kHello, body.data()));
  WireReader reader(answer.body);
  Hello theirs = GetHello(reader);
  ESKER_RETURN_IF_ERROR(reader.Finish("the keeper's hello"));
  return CheckHello(mine, theirs);
}

Result<ContainerHandle> SocketKeeperClient::Create(const ContainerSpec& spec, int volume_fd,
                                                   int listen_fd,
                                                   const std::vector<int>& cgroup_tasks,
                                                   int cgroup_unified) {
  CreateRequest request;
  request.spec = spec;
  request.has_unified = cgroup_unified >= 0;
  request.has_volume = volume_fd >= 0;
  request.task_count = static_cast<uint32_t>(cgroup_tasks.size());
  std::vector<int> fds = {listen_fd};
  UniqueFd unified;
  if (request.has_unified) {
    ESKER_ASSIGN_OR_RETURN(unified, Detached(cgroup_unified, "the cgroup directory"));
    fds.push_back(unified.get());
  }
  if (request.has_volume) fds.push_back(volume_fd);
  fds.insert(fds.end(), cgroup_tasks.begin(), cgroup_tasks.end());
  WireWriter body;
  PutCreate(body, request);
  ESKER_ASSIGN_OR_RETURN(Answer answer, Call(Kind::kCreate, body.data(), fds, kCreateDeadline));
  WireReader reader(answer.body);
  ContainerHandle handle;
  handle.sandbox_id = spec.sandbox_id;
  handle.init = GetIdentity(reader);
  ESKER_RETURN_IF_ERROR(reader.Finish("the keeper's reply to create"));
  if (answer.fds.size() != 1) return DataLossError("the keeper sent no pidfd");
  handle.pidfd = std::move(answer.fds[0]);
  return handle;
}

Result<KeeperClient::Inventory> SocketKeeperClient::List() {
  Inventory inventory;
  std::string after;
  do {
    WireWriter body;
    body.PutBytes(after);
    ESKER_ASSIGN_OR_RETURN(Answer answer, Call(Kind::kList, body.data()));
    WireReader reader(answer.body);
    after = reader.GetString();
    uint32_t live = reader.GetCount(sizeof(uint32_t) + sizeof(int32_t) + sizeof(uint64_t));
    for (uint32_t i = 0; i < live && reader.ok(); ++i) {
      ContainerHandle handle;
      handle.sandbox_id = reader.GetString();
      handle.init = GetIdentity(reader);
      if (i >= answer.fds.size()) return DataLossError("the keeper sent too few pidfds");
      handle.pidfd = std::move(answer.fds[i]);
      inventory.live.push_back(std::move(handle));
    }
    uint32_t ended = reader.GetCount(sizeof(uint32_t) + sizeof(int32_t));
    for (uint32_t i = 0; i < ended && reader.ok(); ++i) inventory.ended.push_back(GetEnd(reader));
    ESKER_RETURN_IF_ERROR(reader.Finish("the keeper's inventory"));
  } while (!after.empty());
  return inventory;
}

Status SocketKeeperClient::AcknowledgeEnd(const std::string& sandbox_id) {
  WireWriter body;
  body.PutBytes(sandbox_id);
  Result<Answer> answer = Call(Kind::kAcknowledgeEnd, body.data());
  return answer.ok() ? OkStatus() : answer.status();
}

void SocketKeeperClient::AcknowledgeEndLater(const std::string& sandbox_id) {
  WireWriter body;
  body.PutBytes(sandbox_id);
  // Nobody waits for an answer. A keeper that is gone has forgotten the end with all else.
  (void)Send(Kind::kAcknowledgeEnd, kNoAnswer, body.data(), {});
}

void SocketKeeperClient::OnEnd(std::function<void(const ContainerEnd&)> callback) {
  {
    std::lock_guard lock(mutex_);
    on_end_ = std::move(callback);
  }
  Wake();  // for ends that came before
}

void SocketKeeperClient::OnLost(std::function<void(const Status&)> callback) {
  std::lock_guard lock(mutex_);
  on_lost_ = std::move(callback);
}

Result<uint32_t> SocketKeeperClient::DropIdleLayers() {
  ESKER_ASSIGN_OR_RETURN(Answer answer, Call(Kind::kDropIdleLayers, {}));
  WireReader reader(answer.body);
  uint32_t count = reader.Get<uint32_t>();
  ESKER_RETURN_IF_ERROR(reader.Finish("the keeper's reply"));
  return count;
}

Result<pid_t> SocketKeeperClient::BlobServerPid() {
  ESKER_ASSIGN_OR_RETURN(Answer answer, Call(Kind::kBlobServerPid, {}));
  WireReader reader(answer.body);
  pid_t pid = reader.Get<int32_t>();
  ESKER_RETURN_IF_ERROR(reader.Finish("the keeper's reply"));
  return pid;
}

Status SocketKeeperClient::ReplaceBlobServer() {
  Result<Answer> answer = Call(Kind::kReplaceBlobServer, {});
  return answer.ok() ? OkStatus() : answer.status();
}

Status SocketKeeperClient::UpgradeBlobServer(const std::string& program) {
  WireWriter body;
  body.PutBytes(program);
  Result<Answer> answer = Call(Kind::kUpgradeBlobServer, body.data());
  return answer.ok() ? OkStatus() : answer.status();
}

Status SocketKeeperClient::Shutdown() {
  Result<Answer> answer = Call(Kind::kShutdown, {});
  if (!answer.ok()) return answer.status();
  return keeper_.WaitExit(kEndDeadlineMs).Wrap("wait for the keeper's end");
}

}  // namespace
}  // namespace keeper

Result<std::unique_ptr<KeeperClient>> KeeperClient::Connect(const KeeperOptions& options) {
  std::string path = options.data_directory + "/run/keeper.sock";
  Result<UniqueFd> socket = ConnectSeqpacket(path);
  if (!socket.ok()) {
    return std::move(socket).status().WithCode(Code::kUnavailable).Wrap("no keeper runs");
  }
  ESKER_ASSIGN_OR_RETURN(PeerCredentials peer, GetPeerCredentials(socket->get()));
  if (peer.uid != geteuid()) {
    return PermissionDeniedError("what listens on " + path + " belongs to user " +
                                 std::to_string(peer.uid));
  }
  ESKER_ASSIGN_OR_RETURN(Process keeper, Process::Open(peer.pid));
  UniqueFd wakeup(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeup.valid()) return ErrnoError("make an eventfd");
  auto client = std::make_unique<keeper::SocketKeeperClient>(std::move(*socket), std::move(wakeup),
                                                             std::move(keeper));
  ESKER_RETURN_IF_ERROR(client->Greet(options));
  return std::unique_ptr<KeeperClient>(std::move(client));
}

Result<std::unique_ptr<KeeperClient>> KeeperClient::ConnectOrStart(const KeeperOptions& options) {
  Result<std::unique_ptr<KeeperClient>> client = Connect(options);
  if (client.ok() || client.status().code() != Code::kUnavailable) return client;
  ESKER_ASSIGN_OR_RETURN(UniqueFd lock, keeper::LockStart(options));
  client = Connect(options);  // another server may have started one meanwhile
  if (client.ok() || client.status().code() != Code::kUnavailable) return client;
  ESKER_RETURN_IF_ERROR(keeper::StartKeeper(options));
  return Connect(options);
}

}  // namespace esker
