#pragma once

#include "call.h"
#include "esker/v1/sandbox.grpc.pb.h"

namespace esker::gateway {

class SandboxService final : public v1::SandboxService::CallbackService {
 public:
  explicit SandboxService(Services& services) : s_(services) {}

#define ESKER_UNARY(Method, Request, Response)                           \
  grpc::ServerUnaryReactor* Method(grpc::CallbackServerContext* context, \
                                   const v1::Request* request, v1::Response* response) override
  ESKER_UNARY(Create, CreateSandboxRequest, Sandbox);
  ESKER_UNARY(Get, GetSandboxRequest, Sandbox);
  ESKER_UNARY(List, ListSandboxesRequest, ListSandboxesResponse);
  ESKER_UNARY(Delete, DeleteSandboxRequest, DeleteSandboxResponse);
  ESKER_UNARY(Pause, PauseSandboxRequest, PauseSandboxResponse);
  ESKER_UNARY(Resume, ResumeSandboxRequest, Sandbox);
  ESKER_UNARY(SetTimeout, SetTimeoutRequest, Sandbox);
  ESKER_UNARY(Snapshot, SnapshotSandboxRequest, SnapshotSandboxResponse);
  ESKER_UNARY(Fork, ForkSandboxRequest, ForkSandboxResponse);
  ESKER_UNARY(GetMetrics, GetMetricsRequest, SandboxMetrics);
  ESKER_UNARY(Describe, DescribeSandboxRequest, DescribeSandboxResponse);
#undef ESKER_UNARY

 private:
  Services& s_;
};

}  // namespace esker::gateway
