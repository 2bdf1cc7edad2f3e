#pragma once

#include "call.h"
#include "esker/v1/command.grpc.pb.h"

namespace esker::gateway {

class CommandService final : public v1::CommandService::CallbackService {
 public:
  explicit CommandService(Services& services) : s_(services) {}

  grpc::ServerWriteReactor<v1::CommandEvent>* Run(grpc::CallbackServerContext* context,
                                                  const v1::StartCommandRequest* request) override;
  grpc::ServerWriteReactor<v1::CommandEvent>* Attach(
      grpc::CallbackServerContext* context, const v1::AttachCommandRequest* request) override;

#define ESKER_UNARY(Method, Request, Response)                           \
  grpc::ServerUnaryReactor* Method(grpc::CallbackServerContext* context, \
                                   const v1::Request* request, v1::Response* response) override
  ESKER_UNARY(Start, StartCommandRequest, Command);
  ESKER_UNARY(Get, GetCommandRequest, Command);
  ESKER_UNARY(List, ListCommandsRequest, ListCommandsResponse);
  ESKER_UNARY(Signal, SignalCommandRequest, SignalCommandResponse);
  ESKER_UNARY(SendStdin, SendStdinRequest, SendStdinResponse);
  ESKER_UNARY(Resize, ResizeRequest, ResizeResponse);
#undef ESKER_UNARY

 private:
  Services& s_;
};

}  // namespace esker::gateway
