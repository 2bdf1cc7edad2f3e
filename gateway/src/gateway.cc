#include "gateway/gateway.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <sys/stat.h>

#include <charconv>
#include <thread>

#include "admin_service.h"
#include "base/socket.h"
#include "call.h"
#include "command_service.h"
#include "file_service.h"
#include "image_service.h"
#include "sandbox_service.h"

namespace esker {
namespace gateway {
namespace {

constexpr int kMaxMessageBytes = 8 << 20;

Status CheckLoopback(const std::string& listen) {
  size_t colon = listen.rfind(':');
  std::string host = listen.substr(0, colon);
  int port = -1;
  if (colon != std::string::npos) {
    const char* end = listen.data() + listen.size();
    auto [stop, ec] = std::from_chars(listen.data() + colon + 1, end, port);
    if (ec != std::errc() || stop != end) port = -1;
  }
  if (port < 0 || port > 65535) {
    return InvalidArgumentError("listen address " + listen + ": want HOST:PORT");
  }
  if (host.starts_with("127.") || host == "localhost" || host == "[::1]") return OkStatus();
  return InvalidArgumentError("listen address " + listen +
                              ": only loopback addresses are served, since keys would travel "
                              "unencrypted; put a TLS proxy in front");
}

// gRPC would replace the socket of a live server in silence.
Status CheckSocketFree(const std::string& path) {
  struct stat st;
  if (::stat(path.c_str(), &st) != 0) return OkStatus();
  if (!S_ISSOCK(st.st_mode)) {
    return FailedPreconditionError("cannot listen on " + path + ": it exists and is no socket");
  }
  return OkStatus();
}

class GatewayImpl final : public Gateway {
 public:
  GatewayImpl(const GatewayOptions& options, Store& store, Index& index, Node& node)
      : options_(options),
        keys_(options.keys_file),
        quick_(options.quick_threads, 4096),
        slow_(options.slow_threads, 1024),
        store_(store),
        index_(index),
        node_(node) {}

  ~GatewayImpl() override {
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
      server_->Wait();
    }
    if (io_ != nullptr) {
      io_->Stop();
      if (io_thread_.joinable()) io_thread_.join();
    }
  }

  int port() const override { return port_; }

  Status Start() {
    ESKER_ASSIGN_OR_RETURN(io_, EventLoop::Create());
    io_thread_ = std::thread([this] { io_->Run(); });
    services_ = std::make_unique<Services>(
        Services{store_, index_, node_, keys_, quick_, slow_, *io_, options_});
    sandboxes_ = std::make_unique<SandboxService>(*services_);
    commands_ = std::make_unique<CommandService>(*services_);
    files_ = std::make_unique<FileService>(*services_);
    images_ = std::make_unique<ImageService>(*services_);
    snapshots_ = std::make_unique<SnapshotService>(*services_);
    admin_ = std::make_unique<AdminService>(*services_);
    return Listen();
  }

 private:
  Status Listen() {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    // With SO_REUSEPORT a second server would take half of the calls unnoticed.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetMaxSendMessageSize(kMaxMessageBytes * 4);
    if (!options_.unix_socket.empty()) {
      ESKER_RETURN_IF_ERROR(CheckSocketFree(options_.unix_socket));
      builder.AddListeningPort("unix:" + options_.unix_socket, grpc::InsecureServerCredentials(),
                               &unix_bound_);
    }
    if (!options_.listen.empty()) {
      ESKER_RETURN_IF_ERROR(CheckListenAddress(options_));
      builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials(), &port_);
    }
    builder.RegisterService(sandboxes_.get());
    builder.RegisterService(commands_.get());
    builder.RegisterService(files_.get());
    builder.RegisterService(images_.get());
    builder.RegisterService(snapshots_.get());
    builder.RegisterService(admin_.get());
    mode_t old = ::umask(0177);  // the socket is born with mode 0600
    server_ = builder.BuildAndStart();
    ::umask(old);
    if (server_ != nullptr && (options_.listen.empty() || port_ > 0)) return OkStatus();
    return FailedPreconditionError("cannot listen on " + options_.unix_socket +
                                   (options_.listen.empty() ? "" : " and " + options_.listen) +
                                   ": the address is taken or not allowed");
  }

  const GatewayOptions options_;
  KeyFile keys_;
  WorkerPool quick_, slow_;
  Store& store_;
  Index& index_;
  Node& node_;
  std::unique_ptr<EventLoop> io_;
  std::thread io_thread_;
  std::unique_ptr<Services> services_;
  std::unique_ptr<SandboxService> sandboxes_;
  std::unique_ptr<CommandService> commands_;
  std::unique_ptr<FileService> files_;
  std::unique_ptr<ImageService> images_;
  std::unique_ptr<SnapshotService> snapshots_;
  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  int unix_bound_ = 0;
};

}  // namespace
}  // namespace gateway

Status CheckListenAddress(const GatewayOptions& options) {
  return options.listen.empty() ? OkStatus() : gateway::CheckLoopback(options.listen);
}

Result<std::unique_ptr<Gateway>> Gateway::Start(const GatewayOptions& options, Store& store,
                                                Index& index, Node& node) {
  auto gateway = std::make_unique<gateway::GatewayImpl>(options, store, index, node);
  ESKER_RETURN_IF_ERROR(gateway->Start());
  return std::unique_ptr<Gateway>(std::move(gateway));
}

}  // namespace esker
