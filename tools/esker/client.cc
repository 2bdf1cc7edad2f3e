#include "client.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "esker/v1/common.pb.h"

namespace esker::cli {

void Prepare(const GlobalOptions& options, grpc::ClientContext* context) {
  if (!options.key.empty()) context->AddMetadata("authorization", "Bearer " + options.key);
}

std::shared_ptr<grpc::Channel> OpenChannel(const GlobalOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(64 << 20);
  // A server that restarts is back in a second or two; do not wait gRPC's default of up to 120 s.
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments);
}

Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.ok()) return OkStatus();
  std::string message = status.error_message();
  auto& trailers = context.GetServerTrailingMetadata();
  if (auto it = trailers.find("esker-error-bin"); it != trailers.end()) {
    v1::ErrorDetail detail;
    if (detail.ParseFromArray(it->second.data(), static_cast<int>(it->second.size()))) {
      if (detail.retryable()) {
        message += " (try again in " + std::to_string(detail.retry_after_ms()) + " ms)";
      }
      if (detail.blame() == v1::ErrorDetail::BLAME_PLATFORM) {
        message += " (trace " + detail.trace_id() + ")";
      }
    }
  }
  return Status(static_cast<Code>(status.error_code()), message);
}

int ReportFailure(const GlobalOptions& options, const Status& status) {
  if (options.json) {
    nlohmann::json json = {{"error", CodeName(status.code())}, {"message", status.message()}};
    std::fprintf(stderr, "%s\n",
                 json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::string hint;
    if (status.code() == Code::kUnavailable) {
      hint = "\nIs `esker serve` running, and is " + options.address + " its address?";
    }
    std::fprintf(stderr, "esker: %s: %s%s\n", std::string(CodeName(status.code())).c_str(),
                 status.message().c_str(), hint.c_str());
  }
  return status.code() == Code::kInvalidArgument ? 2 : 1;
}

}  // namespace esker::cli
