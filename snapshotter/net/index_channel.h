// IndexChannel: calls to the index's process, with key, deadline and repetitions.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "esker/internal/v1/index.grpc.pb.h"

namespace esker::index_net {

namespace pb = ::esker::internal::v1;

// Thread-safe.
class IndexChannel {
 public:
  using Stub = pb::IndexService::Stub;
  using Deadline = std::chrono::milliseconds;
  // What a call may take that only looks up, or changes a name; one that waits for other machines
  // (a pack to be seen, another push's layer, a deletion); one that goes over the whole store.
  static constexpr Deadline kQuick{20'000};
  static constexpr Deadline kWaiting{120'000};
  static constexpr Deadline kWhole{4 * 3600'000};

  IndexChannel(const std::string& address, std::string key, int64_t patience_ns);

  // Repeats while the index cannot be reached, until `patience` is over. For what may be done
  // twice.
  Status Repeat(Deadline deadline, const std::function<Status(Stub&, grpc::ClientContext&)>& call);
  Status Once(Deadline deadline, const std::function<Status(Stub&, grpc::ClientContext&)>& call);

  template <typename Request, typename Response>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);
  template <typename Request, typename Response>
  Status Repeat(Method<Request, Response> method, const Request& request, Response* response,
                Deadline deadline = kQuick) {
    return Repeat(deadline, [&](Stub& stub, grpc::ClientContext& context) {
      return Translate((stub.*method)(&context, request, response));
    });
  }
  template <typename Request, typename Response>
  Status Once(Method<Request, Response> method, const Request& request, Response* response,
              Deadline deadline = kQuick) {
    return Once(deadline, [&](Stub& stub, grpc::ClientContext& context) {
      return Translate((stub.*method)(&context, request, response));
    });
  }

  // Names the index when it could not be reached.
  Status Translate(const grpc::Status& status) const;

 private:
  const std::string address_, key_;
  const int64_t patience_ns_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace esker::index_net
