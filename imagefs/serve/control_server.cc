#include "control_server.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "base/io.h"
#include "control_convert.h"
#include "esker/internal/v1/blob_server.grpc.pb.h"

namespace esker {
namespace {

constexpr size_t kMaxName = 256;
constexpr int kMaxRequestBytes = 16 << 20;

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), status.message()};
}

Status CheckName(const std::string& name) {
  if (!name.empty() && name.size() <= kMaxName) return OkStatus();
  return InvalidArgumentError("a name has 1 to " + std::to_string(kMaxName) + " bytes");
}

template <typename Ids>
Result<std::vector<BlobId>> IdsFromWire(const Ids& in) {
  std::vector<BlobId> ids;
  for (const std::string& bytes : in) {
    ESKER_ASSIGN_OR_RETURN(BlobId id, FromWire(bytes));
    ids.push_back(id);
  }
  return ids;
}

class Service final : public wire::BlobServer::Service {
 public:
  Service(ServerControl& server, CacheControl* cache) : server_(server), cache_(cache) {}

  grpc::Status GetStats(grpc::ServerContext*, const wire::GetStatsRequest* in,
                        wire::GetStatsResponse* out) override {
    BlobServerStats stats = server_.GetStats(in->blobs());
    if (cache_ != nullptr) stats.cache = cache_->Stats();
    ToWire(stats, out);
    return grpc::Status::OK;
  }
  grpc::Status StartRecording(grpc::ServerContext*, const wire::StartRecordingRequest* in,
                              wire::StartRecordingResponse*) override {
    auto start = [&]() -> Status {
      ESKER_RETURN_IF_ERROR(CheckName(in->name()));
      ESKER_ASSIGN_OR_RETURN(std::vector<BlobId> blobs, IdsFromWire(in->blobs()));
      return server_.StartRecording(in->name(), blobs);
    };
    return ToGrpc(start());
  }
  grpc::Status TakeRecording(grpc::ServerContext*, const wire::TakeRecordingRequest* in,
                             wire::TakeRecordingResponse* out) override {
    Result<Recording> recording = server_.TakeRecording(in->name(), in->end());
    if (!recording.ok()) return ToGrpc(recording.status());
    for (const BlobRanges& ranges : recording->touched) ToWire(ranges, out->add_touched());
    out->set_touched_bytes(recording->touched_bytes);
    out->set_quiet_ms(recording->quiet_ms);
    return grpc::Status::OK;
  }
  grpc::Status Prefetch(grpc::ServerContext*, const wire::PrefetchRequest* in,
                        wire::PrefetchResponse* out) override {
    auto start = [&]() -> Status {
      ESKER_RETURN_IF_ERROR(CheckName(in->name()));
      std::vector<BlobRanges> ranges;
      for (const wire::BlobRanges& one : in->ranges()) {
        ESKER_ASSIGN_OR_RETURN(BlobRanges converted, FromWire(one));
        ranges.push_back(std::move(converted));
      }
      ESKER_ASSIGN_OR_RETURN(uint64_t bytes, server_.Prefetch(in->name(), ranges));
      out->set_bytes(bytes);
      return OkStatus();
    };
    return ToGrpc(start());
  }
  grpc::Status CancelPrefetch(grpc::ServerContext*, const wire::CancelPrefetchRequest* in,
                              wire::CancelPrefetchResponse*) override {
    server_.CancelPrefetch(in->name());
    return grpc::Status::OK;
  }

  grpc::Status ListCache(grpc::ServerContext*, const wire::ListCacheRequest*,
                         grpc::ServerWriter<wire::CachedBlob>* writer) override {
    if (cache_ == nullptr) return NoCache();
    return ToGrpc(cache_->List([&](const CachedBlob& blob) {
      wire::CachedBlob message;
      ToWire(blob, &message);
      return writer->Write(message);
    }));
  }
  grpc::Status PruneCache(grpc::ServerContext* context, const wire::PruneCacheRequest* in,
                          wire::PruneCacheResponse* out) override {
    if (cache_ == nullptr) return NoCache();
    PruneRequest request{in->keep_bytes(), in->unused_for_ms(), in->dry_run()};
    Result<PruneReport> report =
        cache_->Prune(request, [context] { return context->IsCancelled(); });
    if (!report.ok()) return ToGrpc(report.status());
    out->set_freed_bytes(report->freed_bytes);
    out->set_kept_bytes(report->kept_bytes);
    out->set_blobs_touched(report->blobs_touched);
    return grpc::Status::OK;
  }
  grpc::Status VerifyCache(grpc::ServerContext* context, const wire::VerifyCacheRequest* in,
                           grpc::ServerWriter<wire::VerifiedBlob>* writer) override {
    if (cache_ == nullptr) return NoCache();
    Result<std::vector<BlobId>> blobs = IdsFromWire(in->blobs());
    if (!blobs.ok()) return ToGrpc(blobs.status());
    auto each = [&](const VerifiedBlob& blob) {
      wire::VerifiedBlob message;
      ToWire(blob, &message);
      return writer->Write(message);
    };
    return ToGrpc(cache_->Verify(*blobs, each, [context] { return context->IsCancelled(); }));
  }

 private:
  static grpc::Status NoCache() {
    return ToGrpc(UnimplementedError("this blob server does not manage its cache"));
  }

  ServerControl& server_;
  CacheControl* const cache_;
};

class GrpcControlServer final : public ControlServer {
 public:
  GrpcControlServer(ServerControl& server, CacheControl* cache) : service_(server, cache) {}
  ~GrpcControlServer() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

  Status Listen(const std::string& path) {
    // By way of its directory's descriptor: gRPC takes short paths only (unix(7)).
    const std::string directory = path.substr(0, path.rfind('/'));
    ESKER_ASSIGN_OR_RETURN(directory_, OpenFile(directory, O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoError("remove " + path);
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
    // Few calls, and this process is here to serve reads.
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
    builder.AddListeningPort("unix:/proc/self/fd/" + std::to_string(directory_.get()) + "/" +
                                 path.substr(path.rfind('/') + 1),
                             grpc::InsecureServerCredentials());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return InternalError("listen on " + path);
    if (::chmod(path.c_str(), 0600) != 0) return ErrnoError("chmod " + path);
    return OkStatus();
  }

 private:
  Service service_;
  UniqueFd directory_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

Result<std::unique_ptr<ControlServer>> ControlServer::Start(const std::string& socket_path,
                                                            ServerControl& server,
                                                            CacheControl* cache) {
  auto control = std::make_unique<GrpcControlServer>(server, cache);
  ESKER_RETURN_IF_ERROR(control->Listen(socket_path));
  return std::unique_ptr<ControlServer>(std::move(control));
}

}  // namespace esker
