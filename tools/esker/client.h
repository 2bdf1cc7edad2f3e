// The CLI's connection to a server, and how it shows failures.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "base/status.h"

namespace esker::cli {

struct GlobalOptions {
  std::string address;  // "unix:/path" or "127.0.0.1:7070"
  std::string key;      // for TCP
  bool json = false;
};

// Sets deadline and authorization on a call's context.
void Prepare(const GlobalOptions& options, grpc::ClientContext* context);
std::shared_ptr<grpc::Channel> OpenChannel(const GlobalOptions& options);

// A failed call as a Status whose message ends with what the ErrorDetail adds (retry hint, trace
// id).
Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context);

// A server, for calls that send one message and get one.
class Connection {
 public:
  explicit Connection(const GlobalOptions& options)
      : options_(options), channel_(OpenChannel(options)) {}

  template <typename Stub, typename Request, typename Response>
  Result<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                     Response*),
                        const Request& request) const {
    Stub stub(channel_);
    grpc::ClientContext context;
    Prepare(options_, &context);
    Response response;
    ESKER_RETURN_IF_ERROR(FromGrpc((stub.*method)(&context, request, &response), context));
    return response;
  }

 private:
  const GlobalOptions& options_;
  std::shared_ptr<grpc::Channel> channel_;
};

// "esker: NOT_FOUND: there is no image x (trace tr-...)", or one JSON object with --json; the exit
// code for it: 1, or 2 for a wrong request.
int ReportFailure(const GlobalOptions& options, const Status& status);

}  // namespace esker::cli
