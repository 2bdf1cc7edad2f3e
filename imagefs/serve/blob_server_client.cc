#include "imagefs/blob_server_client.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <mutex>

#include "base/io.h"
#include "control_convert.h"
#include "esker/internal/v1/blob_server.grpc.pb.h"

namespace esker {
namespace {

constexpr auto kCallLimit = std::chrono::seconds(2);
constexpr auto kListLimit = std::chrono::seconds(60);
constexpr auto kPruneLimit = std::chrono::minutes(10);
constexpr auto kVerifyLimit = std::chrono::hours(1);
constexpr int kMaxAnswerBytes = 64 << 20;

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  return Status(static_cast<Code>(status.error_code()), "blob server: " + status.error_message());
}

class GrpcClient final : public BlobServerClient {
 public:
  explicit GrpcClient(std::string path) : path_(std::move(path)) {}

  Result<BlobServerStats> GetStats(uint32_t blobs) override {
    wire::GetStatsRequest request;
    request.set_blobs(blobs);
    wire::GetStatsResponse response;
    ESKER_RETURN_IF_ERROR(Call(&Stub::GetStats, request, &response, kCallLimit));
    return FromWire(response);
  }
  Status StartRecording(const std::string& name, const std::vector<BlobId>& blobs) override {
    wire::StartRecordingRequest request;
    request.set_name(name);
    for (const BlobId& id : blobs) request.add_blobs(ToWire(id));
    wire::StartRecordingResponse response;
    return Call(&Stub::StartRecording, request, &response, kCallLimit);
  }
  Result<Recording> TakeRecording(const std::string& name, bool end) override {
    wire::TakeRecordingRequest request;
    request.set_name(name);
    request.set_end(end);
    wire::TakeRecordingResponse response;
    ESKER_RETURN_IF_ERROR(Call(&Stub::TakeRecording, request, &response, kCallLimit));
    Recording recording{{}, response.touched_bytes(), response.quiet_ms()};
    for (const wire::BlobRanges& ranges : response.touched()) {
      ESKER_ASSIGN_OR_RETURN(BlobRanges converted, FromWire(ranges));
      recording.touched.push_back(std::move(converted));
    }
    return recording;
  }
  Result<uint64_t> Prefetch(const std::string& name,
                            const std::vector<BlobRanges>& ranges) override {
    wire::PrefetchRequest request;
    request.set_name(name);
    for (const BlobRanges& one : ranges) ToWire(one, request.add_ranges());
    wire::PrefetchResponse response;
    ESKER_RETURN_IF_ERROR(Call(&Stub::Prefetch, request, &response, kCallLimit));
    return response.bytes();
  }
  Status CancelPrefetch(const std::string& name) override {
    wire::CancelPrefetchRequest request;
    request.set_name(name);
    wire::CancelPrefetchResponse response;
    return Call(&Stub::CancelPrefetch, request, &response, kCallLimit);
  }

  Status ListCache(const std::function<bool(const CachedBlob&)>& each) override {
    ESKER_ASSIGN_OR_RETURN(Stub * stub, Connected());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kListLimit);
    return ReadAll<wire::CachedBlob>(context, *stub->ListCache(&context, {}), each);
  }
  Result<PruneReport> PruneCache(const PruneRequest& request) override {
    wire::PruneCacheRequest message;
    message.set_keep_bytes(request.keep_bytes);
    message.set_unused_for_ms(request.unused_for_ms);
    message.set_dry_run(request.dry_run);
    wire::PruneCacheResponse response;
    ESKER_RETURN_IF_ERROR(Call(&Stub::PruneCache, message, &response, kPruneLimit));
    return PruneReport{response.freed_bytes(), response.kept_bytes(), response.blobs_touched()};
  }
  Status VerifyCache(const std::vector<BlobId>& blobs,
                     const std::function<bool(const VerifiedBlob&)>& each) override {
    ESKER_ASSIGN_OR_RETURN(Stub * stub, Connected());
    wire::VerifyCacheRequest request;
    for (const BlobId& id : blobs) request.add_blobs(ToWire(id));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kVerifyLimit);
    return ReadAll<wire::VerifiedBlob>(context, *stub->VerifyCache(&context, request), each);
  }

 private:
  using Stub = wire::BlobServer::Stub;

  Result<Stub*> Connected() {
    std::lock_guard lock(mutex_);
    if (stub_ != nullptr) return stub_.get();
    // By way of its directory's descriptor: gRPC takes short paths only (unix(7)).
    Result<UniqueFd> directory =
        OpenFile(path_.substr(0, path_.rfind('/')), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (!directory.ok()) {
      return std::move(directory).status().WithCode(Code::kUnavailable).Wrap("no blob server");
    }
    directory_ = std::move(*directory);
    grpc::ChannelArguments arguments;
    // The next server is there within milliseconds.
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
    arguments.SetMaxReceiveMessageSize(kMaxAnswerBytes);
    // Else another client of this process could share a connection whose descriptor is closed.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    std::string target = "unix:/proc/self/fd/" + std::to_string(directory_.get()) + "/" +
                         path_.substr(path_.rfind('/') + 1);
    stub_ = wire::BlobServer::NewStub(
        grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
    return stub_.get();
  }

  template <typename Method, typename Request, typename Response, typename Limit>
  Status Call(Method method, const Request& request, Response* response, Limit limit) {
    ESKER_ASSIGN_OR_RETURN(Stub * stub, Connected());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + limit);
    return FromGrpc((stub->*method)(&context, request, response));
  }

  template <typename Message, typename Plain>
  static Status ReadAll(grpc::ClientContext& context, grpc::ClientReader<Message>& reader,
                        const std::function<bool(const Plain&)>& each) {
    Message message;
    while (reader.Read(&message)) {
      Result<Plain> plain = FromWire(message);
      if (plain.ok() && each(*plain)) continue;
      context.TryCancel();
      while (reader.Read(&message)) {
      }
      (void)reader.Finish();  // cancelled by us
      return plain.ok() ? OkStatus() : plain.status();
    }
    return FromGrpc(reader.Finish());
  }

  const std::string path_;
  std::mutex mutex_;  // guards what follows
  UniqueFd directory_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace

std::unique_ptr<BlobServerClient> BlobServerClient::Create(const std::string& socket_path) {
  return std::make_unique<GrpcClient>(socket_path);
}

}  // namespace esker
