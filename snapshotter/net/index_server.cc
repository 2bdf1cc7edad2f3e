#include "snapshotter/index_server.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/id.h"
#include "base/io.h"
#include "net/index_service.h"

namespace esker {
namespace {

using index_net::Holders;
using index_net::IndexServiceImpl;

constexpr auto kShutdownGrace = std::chrono::seconds(2);
constexpr int64_t kLongestPauseNs = 5'000'000'000;  // between looks for silent nodes
constexpr size_t kLeastKeyBytes = 16;

class IndexServerImpl final : public IndexServer {
 public:
  IndexServerImpl(Store& store, Index& index, const IndexServerOptions& options)
      : index_(index),
        options_(options),
        holders_(store, index,
                 Holders::Options{options.lease_ns, options.staleness_ns, options.clock}),
        service_(store, index, holders_,
                 IndexServiceImpl::Options{options.key, options.lease_ns, options.staleness_ns}) {}

  ~IndexServerImpl() override {
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
      server_->Wait();
    }
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    if (watch_.joinable()) watch_.join();
    if (guarding_) index_.GuardGc(nullptr);
  }

  int port() const override { return port_; }

  Status Start() {
    if (options_.key.size() < kLeastKeyBytes) {
      return InvalidArgumentError("the index's key must have at least " +
                                  std::to_string(kLeastKeyBytes) + " bytes");
    }
    ESKER_RETURN_IF_ERROR(holders_.Load());
    index_.GuardGc([this](const GcOptions& options) { return holders_.MayCollect(options); });
    guarding_ = true;
    watch_ = std::thread([this] { Watch(); });
    return Listen();
  }

 private:
  Status Listen() {
    grpc::ServerBuilder builder;
    // With SO_REUSEPORT a second index would take half of the calls unnoticed.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.SetMaxReceiveMessageSize(index_net::kMaxMessageBytes);
    builder.SetMaxSendMessageSize(index_net::kMaxMessageBytes);
    builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ != nullptr && port_ > 0) return OkStatus();
    return FailedPreconditionError("the index cannot listen on " + options_.listen +
                                   ": the address is taken, not of this machine or not HOST:PORT");
  }

  void Watch() {
    const auto pause =
        std::chrono::nanoseconds(std::clamp<int64_t>(options_.lease_ns / 4, 1, kLongestPauseNs));
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, pause, [this] { return stopping_; })) {
      lock.unlock();
      holders_.DropSilent();
      lock.lock();
    }
  }

  Index& index_;
  const IndexServerOptions options_;
  Holders holders_;
  IndexServiceImpl service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  bool guarding_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread watch_;
};

}  // namespace

Result<std::unique_ptr<IndexServer>> IndexServer::Start(Store& store, Index& index,
                                                        const IndexServerOptions& options) {
  auto server = std::make_unique<IndexServerImpl>(store, index, options);
  ESKER_RETURN_IF_ERROR(server->Start());
  return std::unique_ptr<IndexServer>(std::move(server));
}

Result<std::string> ReadIndexKey(const std::string& path, bool make) {
  if (make && !PathExists(path)) {
    ESKER_RETURN_IF_ERROR(ReplaceFileDurably(path, "esx_" + RandomId() + RandomId() + "\n", 0600));
  }
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDONLY));
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) return ErrnoError("stat " + path);
  if ((status.st_mode & 077) != 0) {
    return FailedPreconditionError("the index's key in " + path +
                                   " may be read by others: chmod 600 " + path);
  }
  ESKER_ASSIGN_OR_RETURN(std::string key, ReadFileToString(path, 4096));
  while (!key.empty() && (key.back() == '\n' || key.back() == ' ')) key.pop_back();
  if (key.size() >= kLeastKeyBytes) return key;
  return FailedPreconditionError("the index's key in " + path + " is too short to be one");
}

}  // namespace esker
