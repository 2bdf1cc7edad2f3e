#include "keeper.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

#include "base/io.h"
#include "base/log.h"
#include "base/socket.h"
#include "child_process.h"

namespace esker::keeper {
namespace {

constexpr size_t kMaxQueued = 4096;  // messages that a client has not taken

// Mounts of the host go on to arrive here and to go away here, but none of ours goes there.
Status EnterMountNamespace(const std::string& uppers) {
  if (unshare(CLONE_NEWNS) != 0) return ErrnoError("make the keeper's mount namespace");
  if (mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) {
    return ErrnoError("separate the keeper's mount namespace");
  }
  // Volumes come by descriptor; a copy of their pool's mount here would only keep it busy. That
  // goes for the pools of other servers on this machine too.
  ESKER_ASSIGN_OR_RETURN(std::string table, ReadFileToString("/proc/self/mountinfo"));
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string skip, mountpoint;
    fields >> skip >> skip >> skip >> skip >> mountpoint;
    if (!mountpoint.starts_with(uppers + "/") && !mountpoint.ends_with("/uppers/pool")) continue;
    if (umount2(mountpoint.c_str(), MNT_DETACH) != 0 && errno != EINVAL) {
      return ErrnoError("let go of " + mountpoint);
    }
  }
  return OkStatus();
}

Result<UniqueFd> Lock(const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd lock, OpenFile(path, O_CREAT | O_RDWR, 0600));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno == EWOULDBLOCK) {
    return FailedPreconditionError("another keeper serves this data directory (" + path +
                                   " is locked)");
  }
  return ErrnoError("lock " + path);
}

}  // namespace

struct Keeper::Connection {
  UniqueFd socket;
  bool greeted = false;
  bool watching_output = false;
  struct Outgoing {
    std::string data;
    std::vector<UniqueFd> fds;
  };
  std::deque<Outgoing> queue;
};

Keeper::Keeper(const KeeperOptions& options, std::unique_ptr<EventLoop> loop)
    : options_(options), loop_(std::move(loop)), blobs_(*loop_) {}
Keeper::~Keeper() = default;

Result<std::unique_ptr<Keeper>> Keeper::Start(const KeeperOptions& options) {
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<EventLoop> loop, EventLoop::Create());
  std::unique_ptr<Keeper> keeper(new Keeper(options, std::move(loop)));
  ESKER_RETURN_IF_ERROR(keeper->Open());
  return keeper;
}

Status Keeper::Open() {
  std::string run = options_.data_directory + "/run";
  ESKER_RETURN_IF_ERROR(MakeDirectories(run));
  ESKER_ASSIGN_OR_RETURN(lock_, Lock(run + "/keeper.lock"));
  ESKER_RETURN_IF_ERROR(EnterMountNamespace(options_.data_directory + "/uppers"));
  ESKER_RETURN_IF_ERROR(blobs_.Start(options_));
  layers_ = std::make_unique<LayerTable>(*loop_, blobs_.directory());
  builder_ = std::make_unique<ContainerBuilder>(*loop_, *layers_, options_);
  ESKER_RETURN_IF_ERROR(builder_->Open());
  socket_path_ = run + "/keeper.sock";
  ESKER_ASSIGN_OR_RETURN(listen_, ListenSeqpacket(socket_path_));
  return loop_->Watch(listen_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
}

Status Keeper::Run() {
  loop_->Run();
  return shutdown_;
}

// --- connections ----------------------------------------------------------------------------

void Keeper::Accept() {
  for (;;) {
    UniqueFd fd(accept4(listen_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) return;
    Result<PeerCredentials> peer = GetPeerCredentials(fd.get());
    if (!peer.ok() || peer->uid != geteuid()) {
      LogWarning("refused-connection", {{"uid", peer.ok() ? peer->uid : uid_t(-1)}});
      continue;
    }
    auto connection = std::make_shared<Connection>();
    int number = fd.get();
    connection->socket = std::move(fd);
    Status watched = loop_->Watch(number, EPOLLIN, [this, connection](uint32_t events) {
      if (events & EPOLLOUT) Flush(connection);
      if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) Receive(connection);
    });
    if (watched.ok()) connections_[number] = connection;
  }
}

void Keeper::Close(const std::shared_ptr<Connection>& connection) {
  if (!connection->socket.valid()) return;
  loop_->Unwatch(connection->socket.get());
  connections_.erase(connection->socket.get());
  connection->socket.reset();
  connection->queue.clear();
}

void Keeper::Receive(const std::shared_ptr<Connection>& connection) {
  // A bounded batch, so that one busy client does not keep the loop from all else.
  for (int i = 0; i < 64 && connection->socket.valid(); ++i) {
    Result<SocketMessage> message = ReceiveMessage(connection->socket.get());
    if (!message.ok()) {
      if (message.status().error_number() != EAGAIN) Close(connection);
      return;
    }
    if (!Dispatch(connection, std::move(*message))) {
      LogWarning("bad-request", {{"action", "connection closed"}});
      return Close(connection);
    }
  }
}

void Keeper::Send(const std::shared_ptr<Connection>& connection, std::string data,
                  std::vector<UniqueFd> fds) {
  if (!connection->socket.valid()) return;  // the client went away meanwhile
  connection->queue.push_back({std::move(data), std::move(fds)});
  if (connection->queue.size() > kMaxQueued) {
    LogWarning("slow-client", {{"action", "connection closed"}});
    return Close(connection);
  }
  if (connection->queue.size() == 1) Flush(connection);
}

void Keeper::Flush(const std::shared_ptr<Connection>& connection) {
  while (!connection->queue.empty()) {
    Connection::Outgoing& next = connection->queue.front();
    std::vector<int> fds;
    for (const UniqueFd& fd : next.fds) fds.push_back(fd.get());
    Status sent = SendMessage(connection->socket.get(), next.data, fds);
    if (!sent.ok() && sent.error_number() == EAGAIN) break;
    if (!sent.ok()) return Close(connection);
    connection->queue.pop_front();
  }
  bool want = !connection->queue.empty();
  if (want == connection->watching_output) return;
  connection->watching_output = want;
  uint32_t events = EPOLLIN;
  if (want) events |= EPOLLOUT;
  if (!loop_->Modify(connection->socket.get(), events).ok()) Close(connection);
}

void Keeper::Answer(const std::shared_ptr<Connection>& connection, uint64_t id,
                    const Status& status, std::string_view body, std::vector<UniqueFd> fds) {
  if (id == kNoAnswer) return;
  WireWriter writer;
  PutHeader(writer, Kind::kReply, id);
  PutStatus(writer, status);
  writer.PutRaw(body);
  Send(connection, writer.Take(), std::move(fds));
}

// --- requests -------------------------------------------------------------------------------

bool Keeper::Dispatch(const std::shared_ptr<Connection>& connection, SocketMessage message) {
  WireReader reader(message.data);
  Header header = GetHeader(reader);
  if (!connection->greeted && header.kind != Kind::kHello) return false;
  auto done = [&] { return reader.Finish("request").ok(); };
  switch (header.kind) {
    case Kind::kHello: {
      Hello hello = GetHello(reader);
      if (!done()) return false;
      OnHello(connection, header.id, hello);
      return true;
    }
    case Kind::kCreate: {
      CreateRequest request = GetCreate(reader);
      if (!done()) return false;
      OnCreate(connection, header.id, std::move(request), std::move(message.fds));
      return true;
    }
    case Kind::kList: {
      std::string after = reader.GetString();
      if (!done()) return false;
      OnList(connection, header.id, after);
      return true;
    }
    case Kind::kAcknowledgeEnd: {
      std::string id = reader.GetString();
      if (!done()) return false;
      bool known = ended_.erase(id) != 0 || !live_.contains(id);
      Answer(connection, header.id,
             known ? OkStatus() : FailedPreconditionError("container " + id + " still lives"));
      return true;
    }
    case Kind::kDropIdleLayers: {
      if (!done()) return false;
      WireWriter body;
      body.Put<uint32_t>(layers_->DropIdle());
      Answer(connection, header.id, OkStatus(), body.data());
      return true;
    }
    case Kind::kBlobServerPid: {
      if (!done()) return false;
      WireWriter body;
      body.Put<int32_t>(blobs_.pid());
      Answer(connection, header.id,
             blobs_.pid() != 0 ? OkStatus() : UnavailableError("the blob server is being started"),
             blobs_.pid() != 0 ? std::string_view(body.data()) : std::string_view());
      return true;
    }
    case Kind::kReplaceBlobServer:
      if (!done()) return false;
      Answer(connection, header.id, blobs_.Replace());
      return true;
    case Kind::kUpgradeBlobServer: {
      std::string program = reader.GetString();
      if (!done()) return false;
      Answer(connection, header.id, blobs_.Upgrade(program));
      return true;
    }
    case Kind::kShutdown:
      if (!done()) return false;
      Answer(connection, header.id, OnShutdown());
      return true;
    case Kind::kReply:
    case Kind::kEnded:
      break;
  }
  return false;
}

void Keeper::OnHello(const std::shared_ptr<Connection>& connection, uint64_t id,
                     const Hello& hello) {
  Hello mine;
  mine.first_host_id = options_.first_host_id;
  mine.range_size = options_.range_size;
  mine.store_directory = options_.store_directory;
  mine.cache_directory = options_.cache_directory;
  connection->greeted = hello.magic == kMagic && hello.version == kVersion;
  // The client judges: an operator may want to end a keeper whose options are no longer wanted.
  WireWriter body;
  PutHello(body, mine);
  Answer(connection, id, OkStatus(), body.data());
}

void Keeper::OnCreate(const std::shared_ptr<Connection>& connection, uint64_t id,
                      CreateRequest request, std::vector<UniqueFd> fds) {
  std::string name = request.spec.sandbox_id;
  Status good = CheckCreate(request, options_);
  if (good.ok() && (live_.contains(name) || building_.contains(name))) {
    good = AlreadyExistsError("container " + name + " lives already");
  }
  if (good.ok() && ended_.contains(name)) {
    good = AlreadyExistsError("the end of an earlier container " + name +
                              " has not been acknowledged");
  }
  if (!good.ok()) return Answer(connection, id, good);
  building_.insert(name);
  builder_->Build(std::move(request), std::move(fds),
                  [this, connection, id, name](Result<BuiltContainer> built) {
                    building_.erase(name);
                    if (!built.ok()) return Answer(connection, id, built.status());
                    Result<ContainerHandle> handle = Adopt(name, std::move(*built));
                    if (!handle.ok()) return Answer(connection, id, handle.status());
                    WireWriter body;
                    PutIdentity(body, handle->init);
                    std::vector<UniqueFd> pidfd;
                    pidfd.push_back(std::move(handle->pidfd));
                    Answer(connection, id, OkStatus(), body.data(), std::move(pidfd));
                  });
}

// One page: containers whose id is greater than `after`, in order, at most kListPage of them.
void Keeper::OnList(const std::shared_ptr<Connection>& connection, uint64_t id,
                    const std::string& after) {
  WireWriter live, ends;
  uint32_t live_count = 0, end_count = 0;
  std::vector<UniqueFd> fds;
  auto l = live_.upper_bound(after);
  auto e = ended_.upper_bound(after);
  std::string last = after;
  while (live_count + end_count < kListPage && (l != live_.end() || e != ended_.end())) {
    bool take_live = e == ended_.end() || (l != live_.end() && l->first < e->first);
    last = take_live ? l->first : e->first;
    if (!take_live) {
      PutEnd(ends, ContainerEnd{e->first, e->second});
      ++end_count;
      ++e;
      continue;
    }
    Result<ProcessIdentity> identity = l->second.init.identity();
    UniqueFd pidfd(fcntl(l->second.init.pidfd(), F_DUPFD_CLOEXEC, 0));
    if (!identity.ok() || !pidfd.valid()) {
      return Answer(connection, id, ErrnoError("duplicate the pidfd of container " + last));
    }
    live.PutBytes(last);
    PutIdentity(live, *identity);
    fds.push_back(std::move(pidfd));
    ++live_count;
    ++l;
  }
  WireWriter body;
  body.PutBytes(l == live_.end() && e == ended_.end() ? std::string_view() : last);
  body.Put<uint32_t>(live_count);
  body.PutRaw(live.data());
  body.Put<uint32_t>(end_count);
  body.PutRaw(ends.data());
  Answer(connection, id, OkStatus(), body.data(), std::move(fds));
}

Status Keeper::OnShutdown() {
  if (!live_.empty() || builder_->pending() != 0) {
    return FailedPreconditionError("the keeper has " + std::to_string(live_.size()) +
                                   " containers and builds " + std::to_string(builder_->pending()) +
                                   "; delete them first");
  }
  loop_->Unwatch(listen_.get());
  if (unlink(socket_path_.c_str()) != 0 && errno != ENOENT) {
    LogWarning("unlink-socket", {{"errno", errno}});
  }
  builder_->Stop();
  layers_->DropIdle();
  shutdown_ = blobs_.Stop();
  loop_->Stop();  // the answer has been sent or queued before; the client waits for our end
  return shutdown_;
}

// --- containers -----------------------------------------------------------------------------

Result<ContainerHandle> Keeper::Adopt(const std::string& id, BuiltContainer built) {
  ContainerHandle handle;
  handle.sandbox_id = id;
  Result<ProcessIdentity> identity = built.init.identity();
  handle.pidfd.reset(fcntl(built.init.pidfd(), F_DUPFD_CLOEXEC, 0));
  Status watched = !identity.ok()          ? identity.status()
                   : !handle.pidfd.valid() ? ErrnoError("duplicate the pidfd of container " + id)
                                           : loop_->Watch(built.init.pidfd(), EPOLLIN,
                                                          [this, id](uint32_t) { Ended(id); });
  if (!watched.ok()) {
    // Nobody could supervise it.
    ESKER_RETURN_IF_ERROR(built.init.Kill(SIGKILL));
    ESKER_RETURN_IF_ERROR(ReapWhenEnded(*loop_, std::move(built.init), [](int) {}));
    return watched;
  }
  handle.init = *identity;
  live_[id] = Container{std::move(built.init), std::move(built.layers)};
  return handle;
}

void Keeper::Ended(const std::string& id) {
  auto it = live_.find(id);
  if (it == live_.end()) return;
  loop_->Unwatch(it->second.init.pidfd());
  Result<int> status = it->second.init.Reap();
  ContainerEnd end{id, status.ok() ? *status : 0};
  live_.erase(it);
  ended_[id] = end.wait_status;
  WireWriter writer;
  PutHeader(writer, Kind::kEnded, 0);
  PutEnd(writer, end);
  auto connections = connections_;  // sending may close some
  for (auto& [fd, connection] : connections) {
    if (connection->greeted) Send(connection, writer.data());
  }
}

}  // namespace esker::keeper
