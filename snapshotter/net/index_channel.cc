#include "net/index_channel.h"

#include <algorithm>
#include <thread>

#include "base/clock.h"
#include "net/convert.h"

namespace esker::index_net {
namespace {

constexpr auto kFirstPause = std::chrono::milliseconds(50);
constexpr auto kLongestPause = std::chrono::milliseconds(1000);

}  // namespace

IndexChannel::IndexChannel(const std::string& address, std::string key, int64_t patience_ns)
    : address_(address), key_(std::move(key)), patience_ns_(patience_ns) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  // A machine that is gone without a word is noticed.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // We repeat calls ourselves, so gRPC must not wait for minutes before it connects again.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  // Channels to one address share a connection, and with it the back-off of the others.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // The index is reached directly, whatever proxy the environment names.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  stub_ = pb::IndexService::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

Status IndexChannel::Translate(const grpc::Status& status) const {
  Status translated = FromGrpc(status);
  if (translated.code() != Code::kUnavailable && translated.code() != Code::kDeadlineExceeded) {
    return translated;
  }
  return std::move(translated).Wrap("the index at " + address_);
}

Status IndexChannel::Once(Deadline deadline,
                          const std::function<Status(Stub&, grpc::ClientContext&)>& call) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + deadline);
  context.AddMetadata("authorization", "Bearer " + key_);
  return call(*stub_, context);
}

Status IndexChannel::Repeat(Deadline deadline,
                            const std::function<Status(Stub&, grpc::ClientContext&)>& call) {
  const int64_t end = Clock::System().MonotonicNanos() + patience_ns_;
  auto pause = kFirstPause;
  for (;;) {
    Status status = Once(deadline, call);
    if (status.code() != Code::kUnavailable) return status;
    if (Clock::System().MonotonicNanos() >= end) return status;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace esker::index_net
