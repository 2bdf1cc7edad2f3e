#include "call.h"

#include "base/id.h"
#include "base/log.h"
#include "esker/v1/common.pb.h"

namespace esker::gateway {
namespace {

v1::ErrorDetail::Blame BlameFor(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kNotFound:
    case Code::kAlreadyExists:
    case Code::kPermissionDenied:
    case Code::kFailedPrecondition:
    case Code::kUnauthenticated:
    case Code::kOutOfRange:
    case Code::kUnimplemented:
    case Code::kCancelled:
      return v1::ErrorDetail::BLAME_USER;
    case Code::kResourceExhausted:
    case Code::kDeadlineExceeded:
      return v1::ErrorDetail::BLAME_LIMIT;
    default:
      return v1::ErrorDetail::BLAME_PLATFORM;
  }
}

bool Retryable(const Status& status) {
  return status.code() == Code::kUnavailable || status.code() == Code::kAborted ||
         (status.code() == Code::kResourceExhausted && status.error_number() == 0);
}

}  // namespace

grpc::Status ToGrpc(grpc::ServerContextBase& context, const Status& status, Noun noun) {
  if (status.ok()) return grpc::Status::OK;
  v1::ErrorDetail detail;
  const char* begins = status.code() == Code::kNotFound ? noun.not_found : noun.usual;
  detail.set_reason(std::string(begins) + "_" + std::string(CodeName(status.code())));
  detail.set_message(status.message());
  detail.set_blame(BlameFor(status.code()));
  detail.set_retryable(Retryable(status));
  if (detail.retryable()) detail.set_retry_after_ms(500);
  detail.set_trace_id(RandomId("tr"));
  detail.set_error_number(status.error_number());
  context.AddTrailingMetadata("esker-error-bin", detail.SerializeAsString());
  if (detail.blame() == v1::ErrorDetail::BLAME_PLATFORM) {
    LogWarning("call failed", {{"trace", detail.trace_id()}, {"status", status.ToString()}});
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), status.message());
}

Result<std::string> Caller::ChooseProject(const std::string& asked,
                                          const std::string& otherwise) const {
  if (!bound()) return asked.empty() ? otherwise : asked;
  if (asked.empty() || asked == project) return project;
  return PermissionDeniedError("this key is bound to project " + project + "; it cannot act in " +
                               asked);
}

Result<Caller> Services::Authenticate(const grpc::ServerContextBase& context) const {
  if (context.peer().starts_with("unix:")) return Caller{"*", true};
  auto it = context.client_metadata().find("authorization");
  if (it == context.client_metadata().end()) {
    return UnauthenticatedError("this address needs an API key: send `authorization: Bearer KEY`");
  }
  std::string_view value(it->second.data(), it->second.size());
  constexpr std::string_view kBearer = "Bearer ";
  if (!value.starts_with(kBearer)) {
    return UnauthenticatedError("the authorization must be `Bearer KEY`");
  }
  ESKER_ASSIGN_OR_RETURN(ApiKey key, keys.Find(value.substr(kBearer.size())));
  // What administrators do is about all projects at once.
  return Caller{key.project, key.admin && key.project == "*"};
}

Result<SandboxInfo> Services::FindSandbox(const Caller& caller, const std::string& id) const {
  ESKER_ASSIGN_OR_RETURN(SandboxInfo info, node.Get(id));
  if (!caller.MaySee(info.project)) return NotFoundError("there is no sandbox " + id);
  return info;
}

Status Services::CheckSandbox(const grpc::ServerContextBase& context, const std::string& id) const {
  ESKER_ASSIGN_OR_RETURN(Caller caller, Authenticate(context));
  return FindSandbox(caller, id).status();
}

bool Services::Admit(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor,
                     const std::string& id) const {
  Status allowed = CheckSandbox(*context, id);
  if (!allowed.ok()) reactor->Finish(ToGrpc(*context, allowed, "SANDBOX"));
  return allowed.ok();
}

grpc::ServerUnaryReactor* RunUnary(Services& services, WorkerPool& pool,
                                   grpc::CallbackServerContext* context, Noun noun,
                                   std::function<Status(const Caller&)> work) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  Result<Caller> caller = services.Authenticate(*context);
  if (!caller.ok()) {
    reactor->Finish(ToGrpc(*context, caller.status(), "CALLER"));
    return reactor;
  }
  Status queued = pool.Submit([=, caller = *caller, work = std::move(work)] {
    reactor->Finish(ToGrpc(*context, work(caller), noun));
  });
  if (!queued.ok()) reactor->Finish(ToGrpc(*context, queued, "SERVER"));
  return reactor;
}

grpc::ServerUnaryReactor* RunOnSandbox(Services& services, WorkerPool& pool,
                                       grpc::CallbackServerContext* context, Noun noun,
                                       const std::string& id, std::function<Status()> work) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (!services.Admit(context, reactor, id)) return reactor;
  Status queued =
      pool.Submit([=, work = std::move(work)] { reactor->Finish(ToGrpc(*context, work(), noun)); });
  if (!queued.ok()) reactor->Finish(ToGrpc(*context, queued, "SERVER"));
  return reactor;
}

}  // namespace esker::gateway
