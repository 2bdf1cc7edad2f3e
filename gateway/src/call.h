// What every call needs: who calls, and how a Status becomes a gRPC status with an ErrorDetail.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>

#include "base/event_loop.h"
#include "base/status.h"
#include "base/worker_pool.h"
#include "executor/node.h"
#include "gateway/gateway.h"
#include "gateway/keys.h"
#include "imagefs/store.h"
#include "snapshotter/index.h"

namespace esker::gateway {

struct Caller {
  std::string project;  // "*": all
  bool admin = false;
  bool MaySee(const std::string& p) const { return project == "*" || project == p; }
};

// What the services share. Everything outlives them.
struct Services {
  Store& store;
  Index& index;
  Node& node;
  KeyFile& keys;
  WorkerPool& quick;
  WorkerPool& slow;
  EventLoop& io;  // moves file bytes between pipes and streams
  const GatewayOptions& options;

  // UNAUTHENTICATED without a known key (TCP); everybody on the Unix socket is an administrator.
  Result<Caller> Authenticate(const grpc::ServerContextBase& context) const;
  // NOT_FOUND also when it belongs to a project that the caller may not see.
  Result<SandboxInfo> FindSandbox(const Caller& caller, const std::string& id) const;
  // The caller's and sandbox's check in one.
  Status CheckSandbox(const grpc::ServerContextBase& context, const std::string& id) const;
  // The same for a unary call that needs no worker: when refused, ends it and gives false.
  bool Admit(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor,
             const std::string& id) const;
};

// Adds the ErrorDetail to the trailing metadata. `noun` begins the reason: "IMAGE" + NOT_FOUND.
grpc::Status ToGrpc(grpc::ServerContextBase& context, const Status& status, std::string_view noun);

// A unary call whose work blocks: authenticates, runs `work` on `pool`, answers.
grpc::ServerUnaryReactor* RunUnary(Services& services, WorkerPool& pool,
                                   grpc::CallbackServerContext* context, const char* noun,
                                   std::function<Status(const Caller&)> work);

}  // namespace esker::gateway
