// What the node asks for, one function per request.
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "file_worker.h"
#include "message.h"
#include "server.h"

namespace esker {

using init_protocol::Type;

namespace {

constexpr size_t kMaxWorkers = 64;

Status Malformed() { return InvalidArgumentError("the request is malformed"); }

// Copies of the ends that are left, for the node; the bits say which.
Result<uint8_t> CopyPipes(const Command& command, std::vector<UniqueFd>& fds) {
  uint8_t bits = command.pty ? init_protocol::kPipePty : 0;
  auto copy = [&](const UniqueFd& fd, uint8_t bit) -> Status {
    if (!fd.valid()) return OkStatus();
    UniqueFd duplicate(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
    if (!duplicate.valid()) return ErrnoError("duplicate a pipe end");
    fds.push_back(std::move(duplicate));
    bits = static_cast<uint8_t>(bits | bit);
    return OkStatus();
  };
  ESKER_RETURN_IF_ERROR(copy(command.in, init_protocol::kPipeIn));
  ESKER_RETURN_IF_ERROR(copy(command.out, init_protocol::kPipeOut));
  ESKER_RETURN_IF_ERROR(copy(command.err, init_protocol::kPipeErr));
  return bits;
}

}  // namespace

void Server::OnStart(uint32_t request, WireReader& reader) {
  InitCommandSpec spec = init_protocol::GetSpec(reader);
  if (!reader.Finish("start").ok() || (spec.argv.empty() && spec.shell.empty())) {
    return Reply(request, Malformed());
  }
  Result<Command*> command = commands_.Start(spec);
  if (!command.ok()) return Reply(request, command.status());
  (*command)->waiters.push_back(request);
  // While execve is under way the answer waits for it.
  if (!(*command)->progress.valid()) OnStarted(**command);
}

void Server::OnStarted(Command& command) {
  for (uint32_t request : std::exchange(command.waiters, {})) {
    std::vector<UniqueFd> fds;
    Result<uint8_t> bits = CopyPipes(command, fds);
    if (!bits.ok()) {
      Reply(request, bits.status());
      continue;
    }
    WireWriter body;
    init_protocol::Put(body, command.status);
    body.Put<uint8_t>(*bits);
    Reply(request, OkStatus(), std::move(body), std::move(fds));
  }
}

void Server::OnEnded(Command& command) {
  if (!greeted_) return;  // the inventory will have it
  WireWriter writer = init_protocol::Begin(Type::kExit, 0);
  init_protocol::Put(writer, command.status);
  Send(writer.Take());
}

void Server::OnHandover(uint32_t request, WireReader& reader) {
  std::string id = reader.GetString();
  if (!reader.Finish("handover").ok()) return Reply(request, Malformed());
  Command* command = commands_.Find(id);
  if (command == nullptr || command->acknowledged) {
    return Reply(request, NotFoundError("hand over: no command \"" + id.substr(0, 64) + "\""));
  }
  std::vector<UniqueFd> fds;
  Result<uint8_t> bits = CopyPipes(*command, fds);
  if (!bits.ok()) return Reply(request, bits.status());
  WireWriter body;
  body.Put<uint8_t>(*bits);
  Reply(request, OkStatus(), std::move(body), std::move(fds));
}

void Server::OnCommandCall(Type type, uint32_t request, WireReader& reader) {
  std::string id = reader.GetString();
  if (type == Type::kAcknowledge) return commands_.Acknowledge(id);
  if (type == Type::kSignal) {
    auto number = reader.Get<int32_t>();
    bool whole_tree = reader.Get<uint8_t>() != 0;
    if (!reader.Finish("signal").ok()) return Reply(request, Malformed());
    return Reply(request, commands_.Signal(id, number, whole_tree));
  }
  if (type == Type::kResize) {
    auto rows = reader.Get<uint16_t>();
    auto cols = reader.Get<uint16_t>();
    if (!reader.Finish("resize").ok()) return Reply(request, Malformed());
    return Reply(request, commands_.Resize(id, rows, cols));
  }
  if (!reader.Finish("close stdin").ok()) return Reply(request, Malformed());
  Reply(request, commands_.CloseStdin(id));
}

void Server::OnConfigure(uint32_t request, WireReader& reader) {
  uint32_t count = reader.GetCount(2 * sizeof(uint32_t));
  if (!reader.ok()) return Reply(request, Malformed());
  if (count == 0) return Reply(request, OkStatus());
  Reply(request, UnimplementedError("this init has no setting \"" +
                                    std::string(reader.GetBytes().substr(0, 64)) + "\""));
}

void Server::OnFile(uint32_t request, WireReader& reader, std::vector<UniqueFd>& fds) {
  InitFileRequest call = init_protocol::GetFileRequest(reader);
  bool streams = call.op == InitFileOp::kRead || call.op == InitFileOp::kWrite;
  if (!reader.Finish("file call").ok() || fds.size() != (streams ? 1 : 0)) {
    return Reply(request, Malformed());
  }
  if (workers_.size() >= kMaxWorkers) {
    return Reply(request, ResourceExhaustedError("too many file calls at once in this sandbox"));
  }
  Result<FileWorker> started =
      StartFileWorker(call, streams ? std::move(fds[0]) : UniqueFd(), context_.filter);
  if (!started.ok()) return Reply(request, started.status());
  Worker worker;
  worker.request = request;
  worker.pid = started->pid;
  worker.socket = std::move(started->socket);
  uint64_t serial = next_worker_++;
  if (!Backlogged()) Watch(worker.socket.get(), EPOLLIN, Source::kWorker, serial);
  workers_[serial] = std::move(worker);
}

void Server::OnWorker(uint64_t serial) {
  for (;;) {
    auto found = workers_.find(serial);
    if (found == workers_.end() || Backlogged()) return;
    Worker& worker = found->second;
    std::vector<UniqueFd> fds;
    std::string_view bytes;
    int error = ReceiveInto(worker.socket.get(), bytes, fds);
    if (error == EAGAIN) return;
    if (error != 0 || bytes.empty()) {
      return EndWorker(serial, UnavailableError("the file call was killed"));
    }
    // The first byte is the type; the rest is the message's body as it goes to the node.
    auto type = static_cast<Type>(bytes[0]);
    WireWriter writer = init_protocol::Begin(type, worker.request);
    writer.PutRaw(bytes.substr(1));
    Send(writer.Take());
    if (type == Type::kReply) worker.answered = true;
    ReleaseReceiveBuffer(bytes.size());
    Flush();
  }
}

void Server::EndWorker(uint64_t serial, const Status& status) {
  auto found = workers_.find(serial);
  if (found == workers_.end()) return;
  Worker worker = std::move(found->second);
  workers_.erase(found);
  Unwatch(worker.socket.get());
  // Its pid is 0 once it was reaped; until then it is its own.
  if (worker.pid > 0) ::kill(worker.pid, SIGKILL);
  if (!worker.answered) Reply(worker.request, status);
}

void Server::KillWorkers() {
  for (auto& [serial, worker] : workers_) {
    Unwatch(worker.socket.get());
    if (worker.pid > 0) ::kill(worker.pid, SIGKILL);
  }
  workers_.clear();
}

}  // namespace esker
