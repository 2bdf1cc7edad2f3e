#include "imagefs/blob_server.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "blob_files.h"
#include "control_server.h"
#include "fuse_session.h"

namespace esker {
namespace {

// Blocks SIGTERM, SIGINT and SIGUSR1 for this thread and those it starts; they come as bytes.
Result<UniqueFd> BlockSignals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1}) ::sigaddset(&signals, signal);
  if (int error = ::pthread_sigmask(SIG_BLOCK, &signals, nullptr); error != 0) {
    return Status::FromErrno(error, "block signals");
  }
  UniqueFd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return ErrnoError("make a signalfd");
  return fd;
}

// Until the session ends or a signal asks to; SIGUSR1 only logs the counters.
Status ServeUntilEnd(const FuseSession& session, int signals, const ServerCounters& counters) {
  for (;;) {
    pollfd fds[2] = {{signals, POLLIN, 0}, {session.ended_fd(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return ErrnoError("wait for signals");
    }
    if (fds[1].revents != 0) return OkStatus();
    signalfd_siginfo info;
    if (::read(signals, &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) continue;
    if (info.ssi_signo != SIGUSR1) return OkStatus();
    counters.Log();
  }
}

}  // namespace

Status RunBlobServer(const BlobServerOptions& options) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd signals, BlockSignals());
  BlobFilesOptions files_options;
  files_options.store_directory = options.store_directory;
  files_options.cache_directory = options.cache_directory;
  files_options.retry_deadline_ms = options.retry_deadline_ms;

  BlobFiles files(files_options);
  FuseSession session({options.fuse_fd, options.state_file, options.threads}, files);
  ESKER_RETURN_IF_ERROR(session.Start());
  // Reads are served from here on. The control socket is a help only: without it they still are.
  std::unique_ptr<ControlServer> control;
  if (!options.control_socket.empty()) {
    Result<std::unique_ptr<ControlServer>> started =
        ControlServer::Start(options.control_socket, files, &files.cache());
    if (started.ok()) {
      control = std::move(*started);
    } else {
      LogError("control-socket-not-served", {{"error", started.status().ToString()}});
    }
  }
  Status served = ServeUntilEnd(session, signals.get(), files.counters());
  // First no new requests, then none waits for the store.
  session.Stop();
  files.Stop();
  control.reset();
  files.counters().Log();
  // Threads that hang in the store cannot be joined, and their system calls would keep this
  // process, and with it the cache's locks, for as long as the store hangs. Its end is that of any
  // kill.
  files.UnlockCache();
  ::_exit(served.ok() ? 0 : 1);
}

}  // namespace esker
