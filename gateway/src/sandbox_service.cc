#include "sandbox_service.h"

#include <algorithm>

#include "convert.h"

namespace esker::gateway {
namespace {

Status CheckTier(v1::Tier tier) {
  if (tier == v1::TIER_UNSPECIFIED || tier == v1::TIER_CONTAINER) return OkStatus();
  return UnimplementedError("tier " + v1::Tier_Name(tier) +
                            " is not available on this node; use the container tier");
}

Status CheckKeep(v1::Keep keep) {
  if (keep != v1::KEEP_MEMORY) return OkStatus();
  return UnimplementedError(
      "the container tier keeps files only, not memory: processes would be lost. Ask for "
      "keep=files "
      "to accept that");
}

// -1 means no end; other negative times are slips.
Status CheckTimes(int64_t ttl_ms, int64_t idle_ttl_ms, int64_t create_timeout_ms = 0) {
  if (ttl_ms < -1) return InvalidArgumentError("ttl must be positive, or -1 for no end");
  if (idle_ttl_ms < -1) return InvalidArgumentError("idle_ttl must be positive, or -1 for no end");
  if (create_timeout_ms < 0) return InvalidArgumentError("create_timeout must not be negative");
  return OkStatus();
}

// Beyond these the kernel's own files refuse the number, with less to say about it.
Status CheckResources(const v1::Resources& resources) {
  if (!(resources.cpu() >= 0 && resources.cpu() <= 10'000)) {
    return InvalidArgumentError("cpu must be 0 to 10000 cores");
  }
  if (resources.cpu() > 0 && resources.cpu() < 0.01) {
    return InvalidArgumentError("cpu must be at least 0.01 cores, or 0 for no limit");
  }
  if (resources.pids() > 4'000'000) return InvalidArgumentError("pids must be at most 4000000");
  return OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* SandboxService::Create(grpc::CallbackServerContext* context,
                                                 const v1::CreateSandboxRequest* request,
                                                 v1::Sandbox* response) {
  const Noun noun("SANDBOX", /*when_not_found=*/"IMAGE");
  return RunUnary(s_, s_.quick, context, noun, [=, this](const Caller& caller) -> Status {
    ESKER_RETURN_IF_ERROR(CheckTier(request->tier()));
    if (request->image().empty()) return InvalidArgumentError("no image was named");
    ESKER_RETURN_IF_ERROR(
        CheckTimes(request->ttl_ms(), request->idle_ttl_ms(), request->create_timeout_ms()));
    ESKER_RETURN_IF_ERROR(CheckResources(request->resources()));
    SandboxSpec spec = FromProto(*request);
    ESKER_ASSIGN_OR_RETURN(spec.project, caller.ChooseProject(request->project(), spec.project));
    spec.any_image = !caller.bound();
    ESKER_ASSIGN_OR_RETURN(SandboxInfo info, s_.node.Create(spec));
    *response = ToProto(info);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* SandboxService::Get(grpc::CallbackServerContext* context,
                                              const v1::GetSandboxRequest* request,
                                              v1::Sandbox* response) {
  return RunUnary(s_, s_.quick, context, "SANDBOX", [=, this](const Caller& caller) -> Status {
    ESKER_ASSIGN_OR_RETURN(SandboxInfo info, s_.FindSandbox(caller, request->id()));
    *response = ToProto(info);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* SandboxService::List(grpc::CallbackServerContext* context,
                                               const v1::ListSandboxesRequest* request,
                                               v1::ListSandboxesResponse* response) {
  return RunUnary(s_, s_.quick, context, "SANDBOX", [=, this](const Caller& caller) -> Status {
    size_t size = request->page_size() <= 0
                      ? 100
                      : std::min<size_t>(static_cast<size_t>(request->page_size()), 1000);
    auto wanted = [&](const SandboxInfo& info) {
      if (!caller.MaySee(info.project)) return false;
      if (!request->project().empty() && request->project() != info.project) return false;
      if (!request->job().empty() && request->job() != info.job) return false;
      return std::all_of(request->metadata().begin(), request->metadata().end(), [&](auto& entry) {
        auto it = info.metadata.find(entry.first);
        return it != info.metadata.end() && it->second == entry.second;
      });
    };
    std::vector<SandboxInfo> page =
        s_.node.List(request->include_ended(), request->page_token(), size + 1, wanted);
    if (page.size() > size) {
      page.resize(size);
      response->set_next_page_token(page.back().id);
    }
    for (const SandboxInfo& info : page) *response->add_sandboxes() = ToProto(info);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* SandboxService::Delete(grpc::CallbackServerContext* context,
                                                 const v1::DeleteSandboxRequest* request,
                                                 v1::DeleteSandboxResponse* response) {
  return RunUnary(s_, s_.quick, context, "SANDBOX", [=, this](const Caller& caller) -> Status {
    Result<SandboxInfo> info = s_.FindSandbox(caller, request->id());
    if (info.status().code() == Code::kNotFound) return OkStatus();  // deleting twice is fine
    ESKER_RETURN_IF_ERROR(info.status());
    ESKER_ASSIGN_OR_RETURN(bool existed, s_.node.Delete(request->id()));
    response->set_existed(existed);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* SandboxService::Pause(grpc::CallbackServerContext* context,
                                                const v1::PauseSandboxRequest* request,
                                                v1::PauseSandboxResponse* response) {
  return RunUnary(s_, s_.slow, context, "SANDBOX", [=, this](const Caller& caller) -> Status {
    ESKER_RETURN_IF_ERROR(s_.FindSandbox(caller, request->id()).status());
    ESKER_ASSIGN_OR_RETURN(PauseInfo pause, s_.node.Pause(request->id()));
    *response->mutable_sandbox() = ToProto(pause.info);
    response->set_bytes_freed(pause.bytes_freed);
    response->set_bytes_kept(pause.bytes_kept);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* SandboxService::Resume(grpc::CallbackServerContext* context,
                                                 const v1::ResumeSandboxRequest* request,
                                                 v1::Sandbox* response) {
  return RunUnary(s_, s_.quick, context, "SANDBOX", [=, this](const Caller& caller) -> Status {
    ESKER_RETURN_IF_ERROR(s_.FindSandbox(caller, request->id()).status());
    ESKER_ASSIGN_OR_RETURN(SandboxInfo info, s_.node.Resume(request->id()));
    *response = ToProto(info);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* SandboxService::SetTimeout(grpc::CallbackServerContext* context,
                                                     const v1::SetTimeoutRequest* request,
                                                     v1::Sandbox* response) {
  return RunUnary(s_, s_.quick, context, "SANDBOX", [=, this](const Caller& caller) -> Status {
    ESKER_RETURN_IF_ERROR(s_.FindSandbox(caller, request->id()).status());
    ESKER_RETURN_IF_ERROR(CheckTimes(request->ttl_ms(), request->idle_ttl_ms()));
    ESKER_ASSIGN_OR_RETURN(SandboxInfo info, s_.node.SetTimeout(request->id(), request->ttl_ms(),
                                                                request->idle_ttl_ms()));
    *response = ToProto(info);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* SandboxService::Snapshot(grpc::CallbackServerContext* context,
                                                   const v1::SnapshotSandboxRequest* request,
                                                   v1::SnapshotSandboxResponse* response) {
  return RunOnSandbox(s_, s_.slow, context, "SNAPSHOT", request->id(), [=, this]() -> Status {
    ESKER_RETURN_IF_ERROR(CheckKeep(request->keep()));
    ESKER_ASSIGN_OR_RETURN(SnapshotInfo snapshot,
                           s_.node.Snapshot(request->id(), request->request_id(), request->name()));
    response->set_image(snapshot.image.ToHex());
    response->set_bytes_stored(snapshot.bytes_stored);
    response->set_bytes_deduplicated(snapshot.bytes_deduplicated);
    response->set_frozen_us(snapshot.frozen_us);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* SandboxService::Fork(grpc::CallbackServerContext* context,
                                               const v1::ForkSandboxRequest* request,
                                               v1::ForkSandboxResponse* response) {
  return RunUnary(s_, s_.slow, context, "SANDBOX", [=, this](const Caller& caller) -> Status {
    ESKER_RETURN_IF_ERROR(CheckKeep(request->keep()));
    ESKER_RETURN_IF_ERROR(CheckTimes(request->ttl_ms(), 0));
    if (request->count() < 1 || request->count() > 1000) {
      return InvalidArgumentError("fork makes 1 to 1000 sandboxes, not " +
                                  std::to_string(request->count()));
    }
    ESKER_RETURN_IF_ERROR(s_.FindSandbox(caller, request->id()).status());
    ImageId image;
    std::map<std::string, std::string> metadata(request->metadata().begin(),
                                                request->metadata().end());
    ESKER_ASSIGN_OR_RETURN(std::vector<ForkChild> children,
                           s_.node.Fork(request->id(), request->request_id(), request->count(),
                                        request->ttl_ms(), metadata, &image));
    response->set_image(image.ToHex());
    for (const ForkChild& child : children) {
      v1::ForkSandboxResponse::Child* out = response->add_children();
      if (child.status.ok()) {
        *out->mutable_sandbox() = ToProto(child.info);
      } else {
        out->set_error_code(static_cast<int>(child.status.code()));
        out->set_error_message(child.status.message());
      }
    }
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* SandboxService::GetMetrics(grpc::CallbackServerContext* context,
                                                     const v1::GetMetricsRequest* request,
                                                     v1::SandboxMetrics* response) {
  return RunUnary(s_, s_.quick, context, "SANDBOX", [=, this](const Caller& caller) -> Status {
    ESKER_RETURN_IF_ERROR(s_.FindSandbox(caller, request->id()).status());
    ESKER_ASSIGN_OR_RETURN(SandboxUsage usage, s_.node.GetUsage(request->id()));
    *response = ToProto(usage);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* SandboxService::Describe(grpc::CallbackServerContext* context,
                                                   const v1::DescribeSandboxRequest* request,
                                                   v1::DescribeSandboxResponse* response) {
  return RunUnary(s_, s_.quick, context, "SANDBOX", [=, this](const Caller& caller) -> Status {
    ESKER_ASSIGN_OR_RETURN(SandboxInfo info, s_.FindSandbox(caller, request->id()));
    *response->mutable_sandbox() = ToProto(info);
    ESKER_ASSIGN_OR_RETURN(std::vector<SandboxEvent> events, s_.node.GetEvents(request->id()));
    for (const SandboxEvent& event : events) {
      v1::DescribeSandboxResponse::Event* out = response->add_events();
      *out->mutable_time() = ToTimestamp(event.time_ns);
      out->set_what(event.what);
      out->set_detail(event.detail);
    }
    // An ended sandbox has no cgroup to read; its timeline says what it hit.
    if (Result<SandboxUsage> usage = s_.node.GetUsage(request->id()); usage.ok()) {
      *response->mutable_metrics() = ToProto(*usage);
    }
    return OkStatus();
  });
}

}  // namespace esker::gateway
