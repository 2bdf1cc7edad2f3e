#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <deque>
#include <unordered_map>
#include <utility>

#include "base/socket.h"
#include "executor/init_client.h"
#include "protocol.h"

namespace esker {

using init_protocol::Type;

namespace {

constexpr size_t kMaxInventory = 100'000;  // more than init keeps; bounds a lying one
constexpr size_t kMaxEntries = 200'000;

Status ConnectionLost() { return UnavailableError("the connection to the sandbox's init is lost"); }
Status Garbled() { return DataLossError("the sandbox's init sent a message that makes no sense"); }

// One connection. Shared by the client object and by the loop's callbacks, so that a callback may
// destroy the client.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Answer = std::function<void(Result<WireReader*>, std::vector<UniqueFd>)>;

  Connection(EventLoop& loop, UniqueFd socket) : loop_(loop), socket_(std::move(socket)) {}

  Status Open() {
    int flags = ::fcntl(socket_.get(), F_GETFL);
    if (flags < 0 || ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
      return ErrnoError("set the socket to non-blocking");
    }
    return loop_.Watch(socket_.get(), EPOLLIN,
                       [self = shared_from_this()](uint32_t events) { self->OnReady(events); });
  }

  // Every answer that is still owed is given now.
  void Close(const Status& status) {
    if (!socket_.valid()) return;
    auto keep = shared_from_this();
    loop_.Unwatch(socket_.get());
    socket_.reset();
    outgoing_.clear();
    std::unordered_map<uint32_t, Pending> pending = std::move(pending_);
    pending_.clear();
    for (auto& [request, call] : pending) call.answer(status, {});
    if (auto callback = std::exchange(on_close, nullptr)) callback(status);
  }
  bool open() const { return socket_.valid(); }
  EventLoop& loop() { return loop_; }

  uint32_t Call(Type type, std::string_view body, std::vector<UniqueFd> fds, Answer answer) {
    uint32_t request = next_request_++;
    if (next_request_ == 0) next_request_ = 1;
    if (!open()) {
      answer(ConnectionLost(), {});
      return request;
    }
    WireWriter writer = init_protocol::Begin(type, request);
    writer.PutRaw(body);
    if (writer.size() > kMaxSocketMessage) {
      answer(InvalidArgumentError("the request is larger than " +
                                  std::to_string(kMaxSocketMessage) + " bytes"),
             {});
      return request;
    }
    pending_[request].answer = std::move(answer);
    Enqueue(writer.Take(), std::move(fds));
    return request;
  }
  void Post(Type type, uint32_t request, std::string_view body) {
    if (!open()) return;
    WireWriter writer = init_protocol::Begin(type, request);
    writer.PutRaw(body);
    Enqueue(writer.Take(), {});
  }
  // Messages that belong to a call but do not end it.
  void OnPartial(uint32_t request, std::function<bool(Type, WireReader&)> partial) {
    auto found = pending_.find(request);
    if (found != pending_.end()) found->second.partial = std::move(partial);
  }

  std::function<void(const InitCommandStatus&)> on_exit;
  std::function<void(const Status&)> on_close;
  std::vector<InitCommandStatus> inventory;
  uint32_t version = 0;

 private:
  struct Pending {
    Answer answer;
    std::function<bool(Type, WireReader&)> partial;
  };
  struct Message {
    std::string data;
    std::vector<UniqueFd> fds;
  };

  void Enqueue(std::string data, std::vector<UniqueFd> fds) {
    outgoing_.push_back({std::move(data), std::move(fds)});
    if (outgoing_.size() == 1) Flush();
  }

  // A failure to send is left to the receiving side to see, so that callbacks never run inside the
  // call that they belong to.
  void Flush() {
    while (!outgoing_.empty()) {
      std::vector<int> fds;
      for (const UniqueFd& fd : outgoing_.front().fds) fds.push_back(fd.get());
      Status status = SendMessage(socket_.get(), outgoing_.front().data, fds);
      if (!status.ok() && status.error_number() == EAGAIN) break;
      outgoing_.pop_front();
    }
    uint32_t wanted = outgoing_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT;
    if (wanted != interest_ && loop_.Modify(socket_.get(), wanted).ok()) interest_ = wanted;
  }

  void OnReady(uint32_t events) {
    auto keep = shared_from_this();
    if (events & EPOLLOUT) Flush();
    for (int i = 0; i < 64 && open(); ++i) {
      Result<SocketMessage> message = ReceiveMessage(socket_.get());
      if (!message.ok()) {
        if (message.status().error_number() == EAGAIN) return;
        return Close(ConnectionLost());
      }
      if (!Handle(*message)) return Close(Garbled());
    }
  }

  bool Handle(SocketMessage& message) {
    WireReader reader(message.data);
    init_protocol::Header header = init_protocol::ReadHeader(reader);
    if (header.type == Type::kExit) {
      InitCommandStatus status = init_protocol::GetStatus(reader);
      if (!reader.Finish("exit").ok()) return false;
      if (on_exit) on_exit(status);
      return true;
    }
    auto found = pending_.find(header.request);
    if (found == pending_.end()) return reader.ok();  // an answer to nobody
    if (header.type == Type::kReply || (header.type == Type::kInventory && IsLast(reader))) {
      Answer answer = std::move(found->second.answer);
      pending_.erase(found);
      Status status = header.type == Type::kReply ? init_protocol::GetError(reader) : OkStatus();
      if (!reader.ok()) status = Garbled();
      if (status.ok()) {
        answer(&reader, std::move(message.fds));
      } else {
        answer(status, {});
      }
      return true;
    }
    if (header.type == Type::kInventory) return reader.ok();
    // Copied: what it calls may end the call.
    auto partial = found->second.partial;
    return partial && partial(header.type, reader);
  }

  // Takes the statuses in; true when no further part follows.
  bool IsLast(WireReader& reader) {
    version = reader.Get<uint32_t>();
    bool last = reader.Get<uint8_t>() != 0;
    uint32_t count = reader.GetCount(init_protocol::kLeastStatusBytes);
    for (uint32_t i = 0; i < count && reader.ok(); ++i) {
      if (inventory.size() < kMaxInventory) inventory.push_back(init_protocol::GetStatus(reader));
    }
    return last;
  }

  EventLoop& loop_;
  UniqueFd socket_;
  uint32_t interest_ = EPOLLIN;
  uint32_t next_request_ = 1;
  std::deque<Message> outgoing_;
  std::unordered_map<uint32_t, Pending> pending_;
};

// The descriptors of a reply, named by its bits.
Result<InitCommandPipes> TakePipes(uint8_t bits, std::vector<UniqueFd> fds) {
  InitCommandPipes pipes;
  size_t next = 0;
  for (auto [bit, end] : {std::pair{init_protocol::kPipeIn, &pipes.in},
                          std::pair{init_protocol::kPipeOut, &pipes.out},
                          std::pair{init_protocol::kPipeErr, &pipes.err}}) {
    if (!(bits & bit)) continue;
    if (next == fds.size()) return Garbled();
    *end = std::move(fds[next++]);
  }
  if ((bits & init_protocol::kPipePty) && pipes.out.valid()) {
    pipes.in.reset(::fcntl(pipes.out.get(), F_DUPFD_CLOEXEC, 3));
    if (!pipes.in.valid()) return ErrnoError("duplicate the terminal");
  }
  return pipes;
}

std::string OneString(const std::string& text) {
  WireWriter writer;
  writer.PutBytes(text);
  return writer.Take();
}

class Client : public InitClient {
 public:
  explicit Client(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  ~Client() override {
    connection_->on_exit = nullptr;
    connection_->on_close = nullptr;
    connection_->Close(UnavailableError("the client of the sandbox's init was closed"));
  }

  void Start(const InitCommandSpec& spec, std::function<void(Result<Started>)> done) override {
    WireWriter body;
    init_protocol::Put(body, spec);
    connection_->Call(
        Type::kStart, body.data(), {},
        [done = std::move(done)](Result<WireReader*> reply, std::vector<UniqueFd> fds) {
          if (!reply.ok()) return done(reply.status());
          WireReader& reader = **reply;
          Started started;
          started.status = init_protocol::GetStatus(reader);
          auto bits = reader.Get<uint8_t>();
          if (!reader.Finish("start").ok()) return done(Garbled());
          Result<InitCommandPipes> pipes = TakePipes(bits, std::move(fds));
          if (!pipes.ok()) return done(pipes.status());
          started.pipes = std::move(*pipes);
          done(std::move(started));
        });
  }

  void Handover(const std::string& command_id,
                std::function<void(Result<InitCommandPipes>)> done) override {
    connection_->Call(
        Type::kHandover, OneString(command_id), {},
        [done = std::move(done)](Result<WireReader*> reply, std::vector<UniqueFd> fds) {
          if (!reply.ok()) return done(reply.status());
          auto bits = (*reply)->Get<uint8_t>();
          if (!(*reply)->Finish("handover").ok()) return done(Garbled());
          done(TakePipes(bits, std::move(fds)));
        });
  }

  void Signal(const std::string& command_id, int signal, bool whole_tree,
              std::function<void(Status)> done) override {
    WireWriter body;
    body.PutBytes(command_id);
    body.Put<int32_t>(signal);
    body.Put<uint8_t>(static_cast<uint8_t>(whole_tree ? 1 : 0));
    Simple(Type::kSignal, body.data(), std::move(done));
  }

  void CloseStdin(const std::string& command_id, std::function<void(Status)> done) override {
    Simple(Type::kCloseStdin, OneString(command_id), std::move(done));
  }

  void Resize(const std::string& command_id, uint16_t rows, uint16_t cols,
              std::function<void(Status)> done) override {
    WireWriter body;
    body.PutBytes(command_id);
    body.Put<uint16_t>(rows);
    body.Put<uint16_t>(cols);
    Simple(Type::kResize, body.data(), std::move(done));
  }

  void Acknowledge(const std::string& command_id) override {
    connection_->Post(Type::kAcknowledge, 0, OneString(command_id));
  }

  void Configure(const std::map<std::string, std::string>& settings,
                 std::function<void(Status)> done) override {
    WireWriter body;
    body.Put<uint32_t>(static_cast<uint32_t>(settings.size()));
    for (const auto& [name, value] : settings) {
      body.PutBytes(name);
      body.PutBytes(value);
    }
    Simple(Type::kConfigure, body.data(), std::move(done));
  }

  void File(const InitFileRequest& request, int stream,
            std::function<void(Result<InitFileResult>)> done) override {
    for (const std::string* path : {&request.path, &request.to_path}) {
      if (path->find('\0') == std::string::npos) continue;
      return done(InvalidArgumentError("a path cannot hold a zero byte"));
    }
    std::vector<UniqueFd> fds;
    if (stream >= 0) {
      fds.emplace_back(::fcntl(stream, F_DUPFD_CLOEXEC, 3));
      if (!fds[0].valid()) return done(ErrnoError("duplicate the stream"));
    }
    WireWriter body;
    init_protocol::Put(body, request);
    auto result = std::make_shared<InitFileResult>();
    uint32_t call = connection_->Call(
        Type::kFile, body.data(), std::move(fds),
        [result, done = std::move(done)](Result<WireReader*> reply, std::vector<UniqueFd>) {
          if (!reply.ok()) return done(reply.status());
          InitFileResult tail = init_protocol::GetTail(**reply);
          if (!(*reply)->Finish("file call").ok()) return done(Garbled());
          tail.entries = std::move(result->entries);
          done(std::move(tail));
        });
    connection_->OnPartial(call, [result](Type type, WireReader& reader) {
      uint32_t count = reader.GetCount(init_protocol::kLeastFileInfoBytes);
      if (type != Type::kFileEntries || result->entries.size() + count > kMaxEntries) return false;
      for (uint32_t i = 0; i < count; ++i) {
        result->entries.push_back(init_protocol::GetFileInfo(reader));
      }
      return reader.Finish("entries").ok();
    });
  }

 private:
  void Simple(Type type, std::string_view body, std::function<void(Status)> done) {
    connection_->Call(type, body, {},
                      [done = std::move(done)](Result<WireReader*> reply, std::vector<UniqueFd>) {
                        done(reply.ok() ? OkStatus() : reply.status());
                      });
  }

  std::shared_ptr<Connection> connection_;
};

}  // namespace

void InitClient::Connect(EventLoop& loop, const std::string& socket_path, int64_t deadline_ms,
                         Events events,
                         std::function<void(Result<std::unique_ptr<InitClient>>, Inventory)> done) {
  Result<UniqueFd> socket = ConnectSeqpacket(socket_path);
  if (!socket.ok()) return done(std::move(socket).status().Wrap("connect to init"), {});
  auto connection = std::make_shared<Connection>(loop, std::move(*socket));
  if (Status status = connection->Open(); !status.ok()) return done(std::move(status), {});
  EventLoop::TimerId timer = loop.After(deadline_ms * 1'000'000, [connection, deadline_ms] {
    connection->Close(DeadlineExceededError("the sandbox's init did not answer within " +
                                            std::to_string(deadline_ms) + " ms"));
  });
  WireWriter hello;
  hello.Put<uint32_t>(1);
  hello.Put<uint32_t>(init_protocol::kVersion);
  // A raw pointer: the connection owns the callback.
  auto answered = [raw = connection.get(), timer, events = std::move(events),
                   done = std::move(done)](Result<WireReader*> reply, std::vector<UniqueFd>) {
    raw->loop().Cancel(timer);
    auto connection = raw->shared_from_this();
    if (!reply.ok()) {
      done(reply.status(), {});
      return connection->Close(reply.status());
    }
    connection->on_exit = events.on_exit;
    connection->on_close = events.on_disconnect;
    std::vector<InitCommandStatus> ended;
    for (const InitCommandStatus& status : connection->inventory) {
      if (status.state == InitCommandState::kExited) ended.push_back(status);
    }
    Inventory inventory;
    inventory.protocol = connection->version;
    inventory.commands = std::move(connection->inventory);
    done(std::unique_ptr<InitClient>(std::make_unique<Client>(connection)), std::move(inventory));
    for (const InitCommandStatus& status : ended) {
      if (connection->on_exit) connection->on_exit(status);
    }
  };
  connection->Call(Type::kHello, hello.data(), {}, std::move(answered));
}

}  // namespace esker
