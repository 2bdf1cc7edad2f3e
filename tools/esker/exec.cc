#include "exec.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include "base/id.h"
#include "base/io.h"
#include "esker/v1/command.grpc.pb.h"
#include "output.h"
#include "terminal.h"

namespace esker::cli {
namespace {

using Stub = v1::CommandService::Stub;
using EventStream = grpc::ClientReader<v1::CommandEvent>;

v1::StartCommandRequest MakeRequest(const ExecArguments& arguments) {
  v1::StartCommandRequest request;
  request.set_sandbox_id(arguments.sandbox);
  request.set_request_id(RandomId("req"));
  if (arguments.shell) {
    std::string line;
    for (const std::string& word : arguments.argv) line += (line.empty() ? "" : " ") + word;
    request.set_shell(line);
  } else {
    for (const std::string& word : arguments.argv) request.add_argv(word);
  }
  request.mutable_envs()->insert(arguments.envs.begin(), arguments.envs.end());
  request.set_user(arguments.user);
  request.set_cwd(arguments.cwd);
  request.set_stdin(arguments.interactive);
  request.set_timeout_ms(arguments.timeout_ms);
  request.set_background(arguments.background);
  if (arguments.terminal) {
    TerminalSize size = GetTerminalSize();
    request.mutable_pty()->set_rows(size.rows);
    request.mutable_pty()->set_cols(size.cols);
    const char* term = ::getenv("TERM");
    request.mutable_envs()->insert({"TERM", term != nullptr ? term : "xterm"});
  }
  return request;
}

sigset_t ForwardedSignals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) ::sigaddset(&set, signal);
  return set;
}

// Standard input, window changes and signals of the CLI go to the command, from a thread of its
// own.
class Forwarder {
 public:
  Forwarder(const GlobalOptions& options, Stub& stub, const ExecArguments& arguments)
      : options_(options), stub_(stub), arguments_(arguments) {
    sigset_t set = ForwardedSignals();
    signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) == 0) {
      stop_read_.reset(fds[0]);
      stop_write_.reset(fds[1]);
    }
  }
  ~Forwarder() { Stop(); }

  void Start(const std::string& command) {
    command_ = command;
    thread_ = std::thread([this] { Run(); });
  }
  void Stop() {
    stop_write_.reset();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run() {
    bool input_open = arguments_.interactive;
    for (;;) {
      pollfd fds[3] = {{stop_read_.get(), POLLIN, 0},
                       {signals_.get(), POLLIN, 0},
                       {input_open ? 0 : -1, POLLIN, 0}};
      if (::poll(fds, 3, -1) < 0) continue;
      if (fds[0].revents != 0) return;
      if (fds[1].revents != 0) OnSignal();
      if (fds[2].revents != 0) input_open = ForwardInput();
    }
  }

  bool ForwardInput() {
    char buffer[65536];
    ssize_t n = ::read(0, buffer, sizeof(buffer));
    if (n < 0) return errno == EINTR || errno == EAGAIN;
    v1::SendStdinRequest request;
    request.set_sandbox_id(arguments_.sandbox);
    request.set_command_id(command_);
    request.set_data(buffer, static_cast<size_t>(n));
    request.set_eof(n == 0);
    request.set_has_offset(true);
    request.set_offset(sent_);
    // The offset makes repeating harmless, so a restarting server costs only the wait.
    for (int attempt = 0; attempt < 50; ++attempt) {
      grpc::ClientContext context;
      Prepare(options_, &context);
      context.set_wait_for_ready(true);
      v1::SendStdinResponse response;
      grpc::Status status = stub_.SendStdin(&context, request, &response);
      if (status.ok()) {
        sent_ += static_cast<uint64_t>(n);
        return n != 0;
      }
      if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return false;
    }
    return false;
  }

  void OnSignal() {
    signalfd_siginfo info;
    if (::read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
    grpc::ClientContext context;
    Prepare(options_, &context);
    if (info.ssi_signo == SIGWINCH) {
      if (!arguments_.terminal) return;
      v1::ResizeRequest request;
      request.set_sandbox_id(arguments_.sandbox);
      request.set_command_id(command_);
      TerminalSize size = GetTerminalSize();
      request.mutable_pty()->set_rows(size.rows);
      request.mutable_pty()->set_cols(size.cols);
      v1::ResizeResponse response;
      (void)stub_.Resize(&context, request, &response);  // the next one corrects a lost one
      return;
    }
    v1::SignalCommandRequest request;
    request.set_sandbox_id(arguments_.sandbox);
    request.set_command_id(command_);
    request.set_signal(static_cast<int>(info.ssi_signo));
    v1::SignalCommandResponse response;
    (void)stub_.Signal(&context, request, &response);  // the user presses again if it was lost
  }

  const GlobalOptions& options_;
  Stub& stub_;
  const ExecArguments& arguments_;
  UniqueFd signals_, stop_read_, stop_write_;
  std::string command_;
  uint64_t sent_ = 0;
  std::thread thread_;
};

// Copies events to our own descriptors and remembers how far it came.
class Follower {
 public:
  Follower(const GlobalOptions& options, Stub& stub, const ExecArguments& arguments)
      : options_(options),
        stub_(stub),
        arguments_(arguments),
        forwarder_(options, stub, arguments) {}

  Result<int> Run() {
    v1::StartCommandRequest request = MakeRequest(arguments_);
    ESKER_RETURN_IF_ERROR(
        ReadAll([&](grpc::ClientContext* context) { return stub_.Run(context, request); }));
    // The command goes on without us: follow it again until it has ended.
    while (!exit_) {
      v1::AttachCommandRequest attach;
      attach.set_sandbox_id(arguments_.sandbox);
      attach.set_command_id(command_);
      attach.set_stdout_offset(offsets_[0]);
      attach.set_stderr_offset(offsets_[1]);
      ESKER_RETURN_IF_ERROR(ReadAll([&](grpc::ClientContext* context) {
        context->set_wait_for_ready(true);
        return stub_.Attach(context, attach);
      }));
    }
    forwarder_.Stop();
    return FinishExit();
  }

 private:
  // OK also when the connection broke after the command had started.
  Status ReadAll(const std::function<std::unique_ptr<EventStream>(grpc::ClientContext*)>& open) {
    grpc::ClientContext context;
    Prepare(options_, &context);
    std::unique_ptr<EventStream> stream = open(&context);
    v1::CommandEvent event;
    while (stream->Read(&event)) ESKER_RETURN_IF_ERROR(OnEvent(event));
    grpc::Status ended = stream->Finish();
    if (ended.error_code() == grpc::StatusCode::UNAVAILABLE && !command_.empty()) return OkStatus();
    return FromGrpc(ended, context);
  }

  Status OnEvent(const v1::CommandEvent& event) {
    if (event.has_started() && command_.empty()) {
      command_ = event.started().id();
      forwarder_.Start(command_);
    }
    if (event.has_exited()) exit_ = event.exited();
    if (event.has_output()) {
      const v1::CommandEvent::Output& output = event.output();
      int fd = output.stream() == v1::STREAM_STDERR ? 2 : 1;
      offsets_[fd - 1] = output.offset() + output.data().size();
      if (!options_.json) return Show(output, fd);
    }
    if (options_.json) {
      PrintJson(event);
      std::fflush(stdout);
    }
    return OkStatus();
  }

  static Status Show(const v1::CommandEvent::Output& output, int fd) {
    if (output.lost() != 0) {
      std::fprintf(stderr, "esker: %llu bytes of output were dropped here\n",
                   static_cast<unsigned long long>(output.lost()));
    }
    return WriteFull(fd, output.data().data(), output.data().size());
  }

  Result<int> FinishExit() {
    const v1::Exit& exit = exit_->exit();
    if (!options_.json) Explain(exit);  // else its last event has said so
    if (!exit.reason().empty()) {
      return FailedPreconditionError("the sandbox ended: " + exit.reason());
    }
    return exit.exit_code();
  }

  static void Explain(const v1::Exit& exit) {
    if (!exit.error().empty()) std::fprintf(stderr, "esker: %s\n", exit.error().c_str());
    if (exit.timed_out()) std::fprintf(stderr, "esker: the command was killed by its time-out\n");
    if (exit.oom_killed()) {
      std::fprintf(stderr, "esker: the sandbox's memory limit killed a process of it\n");
    }
  }

  const GlobalOptions& options_;
  Stub& stub_;
  const ExecArguments& arguments_;
  Forwarder forwarder_;
  std::string command_;
  uint64_t offsets_[2] = {0, 0};
  std::optional<v1::Command> exit_;
};

Result<int> StartInBackground(const GlobalOptions& options, const ExecArguments& arguments) {
  ESKER_ASSIGN_OR_RETURN(v1::Command command,
                         Connection(options).Call(&Stub::Start, MakeRequest(arguments)));
  if (options.json) {
    PrintJson(command);
  } else {
    std::printf("%s\n", command.id().c_str());
  }
  return 0;
}

}  // namespace

Result<int> Exec(const GlobalOptions& options, const ExecArguments& arguments) {
  if (arguments.terminal && arguments.interactive && ::isatty(0) != 1) {
    return FailedPreconditionError(
        "exec -it: standard input is not a terminal; leave -t out to forward it as it is");
  }
  // Before gRPC starts its threads, which inherit the mask: one that did not would take the
  // signals.
  if (!arguments.background) {
    sigset_t set = ForwardedSignals();
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  }
  if (arguments.background) return StartInBackground(options, arguments);
  auto stub = v1::CommandService::NewStub(OpenChannel(options));
  std::optional<RawTerminal> raw;
  if (arguments.terminal && arguments.interactive) raw.emplace();
  return Follower(options, *stub, arguments).Run();
}

}  // namespace esker::cli
