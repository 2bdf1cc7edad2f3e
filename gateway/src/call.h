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
  bool bound() const { return project != "*"; }
  bool MaySee(const std::string& p) const { return !bound() || project == p; }
  // The project in which a request is done: the one it asked for, or if it asked for none the
  // caller's own, or `otherwise` for a caller of all. PERMISSION_DENIED: bound to another one.
  Result<std::string> ChooseProject(const std::string& asked, const std::string& otherwise) const;
  // What it sees of images when it looks names up in `project`.
  ImageView View(const std::string& in_project) const { return {in_project, !bound()}; }
};

// What a failed call's reason begins with.
struct Noun {
  // NOLINTNEXTLINE(google-explicit-constructor): nearly all have one for everything.
  Noun(const char* any) : usual(any), not_found(any) {}
  Noun(const char* usual_noun, const char* when_not_found)
      : usual(usual_noun), not_found(when_not_found) {}
  const char* usual;
  const char* not_found;
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
grpc::Status ToGrpc(grpc::ServerContextBase& context, const Status& status, Noun noun);

// A unary call whose work blocks: authenticates, runs `work` on `pool`, answers.
grpc::ServerUnaryReactor* RunUnary(Services& services, WorkerPool& pool,
                                   grpc::CallbackServerContext* context, Noun noun,
                                   std::function<Status(const Caller&)> work);
// The same about one sandbox, when what may be missing in it is told apart from its being missing.
grpc::ServerUnaryReactor* RunOnSandbox(Services& services, WorkerPool& pool,
                                       grpc::CallbackServerContext* context, Noun noun,
                                       const std::string& id, std::function<Status()> work);

}  // namespace esker::gateway
