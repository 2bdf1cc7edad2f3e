#include "server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "file_worker.h"
#include "message.h"

namespace esker {

using init_protocol::Type;

namespace {

constexpr int kSourceBits = 3;

Status Malformed() { return InvalidArgumentError("the request is malformed"); }

}  // namespace

Server::Server(int listen_fd, const LaunchContext& context, size_t max_commands)
    : listen_fd_(listen_fd), context_(context), commands_(context, max_commands, *this) {}

Status Server::SetUp() {
  sigset_t all;
  ::sigfillset(&all);
  // All of them: the kernel keeps signals from inside the sandbox away from PID 1 unless it asks.
  if (::sigprocmask(SIG_SETMASK, &all, nullptr) != 0) return ErrnoError("block signals");
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  children_.reset(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!children_.valid()) return ErrnoError("make a signal descriptor");
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return ErrnoError("make epoll");
  ::fcntl(listen_fd_, F_SETFL, O_RDWR | O_NONBLOCK);
  if (!Watch(listen_fd_, EPOLLIN, Source::kListen, 0) ||
      !Watch(children_.get(), EPOLLIN, Source::kChildren, 0)) {
    return ErrnoError("watch the listening socket");
  }
  return OkStatus();
}

Status Server::Run() {
  ESKER_RETURN_IF_ERROR(SetUp());
  for (;;) {
    int timeout = -1;
    if (int64_t deadline = commands_.NextDeadline(); deadline != 0) {
      int64_t left = std::max<int64_t>(0, deadline - MonotonicNanos());
      timeout = static_cast<int>(std::min<int64_t>((left + 999'999) / 1'000'000, 3'600'000));
    }
    epoll_event events[16];
    int count = ::epoll_wait(epoll_.get(), events, 16, timeout);
    for (int i = 0; i < count; ++i) Dispatch(events[i].data.u64, events[i].events);
    commands_.OnDeadlines(MonotonicNanos());
    Flush();
  }
}

bool Server::Watch(int fd, uint32_t events, Source source, uint64_t serial) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = serial << kSourceBits | static_cast<uint64_t>(source);
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void Server::Unwatch(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void Server::WatchCommand(int fd, CommandObserver::Watch what, uint64_t serial) {
  bool cgroup = what == CommandObserver::Watch::kCgroup;
  Watch(fd, cgroup ? EPOLLPRI : EPOLLIN, cgroup ? Source::kCgroup : Source::kProgress, serial);
  // A change between opening the file and watching it would not wake us.
  if (cgroup) commands_.OnCgroup(serial);
}

void Server::Dispatch(uint64_t token, uint32_t events) {
  uint64_t serial = token >> kSourceBits;
  switch (static_cast<Source>(token & ((1 << kSourceBits) - 1))) {
    case Source::kListen:
      return Accept();
    case Source::kConnection:
      if (serial != connection_serial_ || !connection_.valid()) return;
      // Flushing to a peer that is gone fails, which ends a connection that nothing is read from.
      if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) Flush();
      if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) ReadRequests();
      return;
    case Source::kChildren:
      return Reap();
    case Source::kProgress:
      return commands_.OnProgress(serial);
    case Source::kCgroup:
      return commands_.OnCgroup(serial);
    case Source::kWorker:
      return OnWorker(serial);
  }
}

void Server::Accept() {
  for (;;) {
    UniqueFd fd(::accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    ucred peer = {};
    socklen_t size = sizeof(peer);
    // A process outside our pid namespace has no pid here.
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid != 0) {
      continue;
    }
    // The newest node is the right one: the one before it may be dead without having hung up.
    DropConnection();
    connection_ = std::move(fd);
    ++connection_serial_;
    interest_ = EPOLLIN;
    if (!Watch(connection_.get(), interest_, Source::kConnection, connection_serial_)) {
      DropConnection();
    }
  }
}

void Server::DropConnection() {
  if (!connection_.valid()) return;
  Unwatch(connection_.get());
  connection_.reset();
  greeted_ = false;
  outgoing_.clear();
  commands_.ForgetWaiters();
  KillWorkers();
}

void Server::UpdateInterest() {
  uint32_t wanted = Backlogged() ? EPOLLOUT : EPOLLIN;
  if (!connection_.valid() || wanted == interest_) return;
  interest_ = wanted;
  epoll_event event = {};
  event.events = wanted;
  event.data.u64 = connection_serial_ << kSourceBits | static_cast<uint64_t>(Source::kConnection);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection_.get(), &event);
  // What workers have to say waits as long, in their sockets.
  for (auto& [serial, worker] : workers_) {
    if (Backlogged()) {
      Unwatch(worker.socket.get());
    } else {
      Watch(worker.socket.get(), EPOLLIN, Source::kWorker, serial);
    }
  }
}

void Server::ReadRequests() {
  // A few at a time, so that children and deadlines get their turn.
  for (int i = 0; i < 16 && connection_.valid() && !Backlogged(); ++i) {
    std::vector<UniqueFd> fds;
    std::string_view bytes;
    int error = ReceiveInto(connection_.get(), bytes, fds);
    if (error == EAGAIN) break;
    if (error != 0) return DropConnection();
    HandleRequest(bytes, std::move(fds));
    ReleaseReceiveBuffer(bytes.size());
  }
}

void Server::HandleRequest(std::string_view bytes, std::vector<UniqueFd> fds) {
  WireReader reader(bytes);
  init_protocol::Header header = init_protocol::ReadHeader(reader);
  if (!reader.ok() || (!greeted_ && header.type != Type::kHello)) return DropConnection();
  switch (header.type) {
    case Type::kHello:
      return OnHello(header.request, reader);
    case Type::kStart:
      return OnStart(header.request, reader);
    case Type::kHandover:
      return OnHandover(header.request, reader);
    case Type::kSignal:
    case Type::kCloseStdin:
    case Type::kResize:
    case Type::kAcknowledge:
      return OnCommandCall(header.type, header.request, reader);
    case Type::kFile:
      return OnFile(header.request, reader, fds);
    case Type::kConfigure:
      return OnConfigure(header.request, reader);
    default:
      return Reply(header.request,
                   UnimplementedError("this init does not know request type " +
                                      std::to_string(static_cast<int>(header.type))));
  }
}

void Server::Send(std::string data, std::vector<UniqueFd> fds) {
  if (!connection_.valid()) return;
  outgoing_.push_back({std::move(data), std::move(fds)});
}

void Server::Flush() {
  while (connection_.valid() && !outgoing_.empty()) {
    int error = SendFrom(connection_.get(), outgoing_.front().data, outgoing_.front().fds);
    if (error == EAGAIN) break;
    if (error != 0) return DropConnection();
    outgoing_.pop_front();
  }
  UpdateInterest();
}

void Server::Reply(uint32_t request, const Status& status, WireWriter body,
                   std::vector<UniqueFd> fds) {
  WireWriter writer = init_protocol::Begin(Type::kReply, request);
  init_protocol::PutError(writer, status);
  writer.PutRaw(body.data());
  Send(writer.Take(), std::move(fds));
}

void Server::OnHello(uint32_t request, WireReader& reader) {
  auto lowest = reader.Get<uint32_t>();
  auto highest = reader.Get<uint32_t>();
  if (!reader.ok()) return Reply(request, Malformed());
  if (lowest > init_protocol::kVersion || highest < init_protocol::kVersion) {
    return Reply(request, FailedPreconditionError("this sandbox's init speaks protocol version " +
                                                  std::to_string(init_protocol::kVersion) +
                                                  ", the node versions " + std::to_string(lowest) +
                                                  " to " + std::to_string(highest)));
  }
  greeted_ = true;
  SendInventory(request);
}

void Server::SendInventory(uint32_t request) {
  std::vector<const InitCommandStatus*> list = commands_.List();
  size_t next = 0;
  do {
    WireWriter statuses;
    uint32_t count = 0;
    for (; next < list.size() && statuses.size() < init_protocol::kChunkBytes; ++next, ++count) {
      init_protocol::Put(statuses, *list[next]);
    }
    WireWriter writer = init_protocol::Begin(Type::kInventory, request);
    writer.Put<uint32_t>(init_protocol::kVersion);
    writer.Put<uint8_t>(static_cast<uint8_t>(next == list.size() ? 1 : 0));
    writer.Put<uint32_t>(count);
    writer.PutRaw(statuses.data());
    Send(writer.Take());
  } while (next < list.size());
}

void Server::Reap() {
  signalfd_siginfo info;
  while (::read(children_.get(), &info, sizeof(info)) > 0) {
  }
  for (;;) {
    int status;
    pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid <= 0) return;
    auto worker = std::find_if(workers_.begin(), workers_.end(),
                               [&](const auto& each) { return each.second.pid == pid; });
    if (worker == workers_.end()) {
      commands_.OnReaped(pid, status);
      continue;
    }
    // What it said last is still in its socket; the end of file behind that ends the call.
    worker->second.pid = 0;
  }
}

}  // namespace esker
