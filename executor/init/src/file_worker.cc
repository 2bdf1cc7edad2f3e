#include "file_worker.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "file_ops.h"
#include "message.h"
#include "protocol.h"

namespace esker {
namespace {

constexpr int kSocket = 3, kStream = 4;

// Keeps the two descriptors and closes all others: a long call must not keep the pipes of commands
// open.
bool ArrangeDescriptors(int socket, int stream) {
  int high_socket = ::fcntl(socket, F_DUPFD_CLOEXEC, 10);
  int high_stream = stream < 0 ? -1 : ::fcntl(stream, F_DUPFD_CLOEXEC, 10);
  if (high_socket < 0 || ::dup2(high_socket, kSocket) < 0) return false;
  if (stream >= 0 && (high_stream < 0 || ::dup2(high_stream, kStream) < 0)) return false;
  return ::close_range(stream < 0 ? kStream : kStream + 1, ~0U, 0) == 0;
}

void ReplyError(const Status& status) {
  WireWriter writer;
  writer.Put<uint8_t>(static_cast<uint8_t>(init_protocol::Type::kReply));
  init_protocol::PutError(writer, status);
  (void)SendFrom(kSocket, writer.data(), {});  // the end of file behind it tells as much
}

[[noreturn]] void RunWorker(const InitFileRequest& request, int socket, int stream,
                            const SystemCallFilter& filter) {
  ResetSignals();
  ::signal(SIGPIPE, SIG_IGN);
  if (!ArrangeDescriptors(socket, stream)) ::_exit(1);
  Accounts accounts = Accounts::Load();
  Result<Account> account = accounts.Resolve(request.user);
  Status status = account.ok() ? Confine(*account, filter) : account.status();
  if (!status.ok()) {
    ReplyError(status);
    ::_exit(1);
  }
  ::umask(022);
  FileCall(request, std::move(accounts), *account, stream < 0 ? -1 : kStream, kSocket).Run();
  ::_exit(0);
}

}  // namespace

Result<FileWorker> StartFileWorker(const InitFileRequest& request, UniqueFd stream,
                                   const SystemCallFilter& filter) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    return ErrnoError("make a socket pair");
  }
  FileWorker worker;
  worker.socket.reset(pair[0]);
  UniqueFd theirs(pair[1]);
  worker.pid = ::fork();
  if (worker.pid == 0) RunWorker(request, theirs.get(), stream.get(), filter);
  if (worker.pid < 0) {
    if (errno != EAGAIN) return ErrnoError("start a file call");
    return Status::FromErrno(EAGAIN,
                             "start a file call: the sandbox's limit of processes is reached")
        .WithCode(Code::kResourceExhausted);
  }
  return worker;
}

}  // namespace esker
