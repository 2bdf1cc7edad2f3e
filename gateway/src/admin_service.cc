#include "admin_service.h"

#include <unistd.h>

namespace esker::gateway {

Status AdminService::CheckAdmin(grpc::ServerContext* context) const {
  ESKER_ASSIGN_OR_RETURN(Caller caller, s_.Authenticate(*context));
  if (caller.admin) return OkStatus();
  return PermissionDeniedError("this call needs an administrator's key (or the Unix socket)");
}

grpc::Status AdminService::GetVersion(grpc::ServerContext* context, const v1::GetVersionRequest*,
                                      v1::GetVersionResponse* response) {
  Status status = s_.Authenticate(*context).status();
  response->set_version(s_.options.version);
  response->set_api("esker.v1");
  return ToGrpc(*context, status, "VERSION");
}

grpc::Status AdminService::CollectGarbage(grpc::ServerContext* context,
                                          const v1::CollectGarbageRequest* request,
                                          v1::CollectGarbageResponse* response) {
  auto collect = [&]() -> Status {
    ESKER_RETURN_IF_ERROR(CheckAdmin(context));
    int64_t grace_ms =
        request->grace_ms() < 0 ? s_.options.default_gc_grace_ms : request->grace_ms();
    ESKER_ASSIGN_OR_RETURN(GcReport report,
                           s_.index.CollectGarbage({.grace_ns = grace_ms * 1'000'000}));
    // What the collected blobs left on this node: idle mounts and cache files.
    ESKER_RETURN_IF_ERROR(s_.node.DropUnused());
    response->set_packs_live(report.packs_live);
    response->set_packs_deleted(report.packs_deleted);
    response->set_bytes_deleted(report.bytes_deleted);
    response->set_images_live(report.images_live);
    response->set_images_deleted(report.images_deleted);
    response->set_packs_condemned(report.packs_condemned);
    response->set_temporaries_deleted(report.temporaries_deleted);
    return OkStatus();
  };
  return ToGrpc(*context, collect(), "GC");
}

grpc::Status AdminService::RebuildIndex(grpc::ServerContext* context,
                                        const v1::RebuildIndexRequest*,
                                        grpc::ServerWriter<v1::RebuildIndexEvent>* writer) {
  auto rebuild = [&]() -> Status {
    ESKER_RETURN_IF_ERROR(CheckAdmin(context));
    ESKER_ASSIGN_OR_RETURN(RebuildReport report, s_.index.Rebuild([&](uint64_t done, uint64_t all) {
      v1::RebuildIndexEvent event;
      event.set_done(done);
      event.set_total(all);
      writer->Write(event);
    }));
    v1::RebuildIndexEvent event;
    event.set_done(report.packs);
    event.set_total(report.packs);
    event.set_finished(true);
    event.set_images(report.images);
    event.set_tags(report.tags);
    event.set_damaged(report.damaged);
    for (const std::string& name : report.damaged_names) event.add_damaged_names(name);
    writer->Write(event);
    return OkStatus();
  };
  return ToGrpc(*context, rebuild(), "INDEX");
}

grpc::Status AdminService::GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest*,
                                     v1::GetStatusResponse* response) {
  auto status = [&]() -> Status {
    ESKER_RETURN_IF_ERROR(CheckAdmin(context));
    ESKER_ASSIGN_OR_RETURN(Index::Stats stats, s_.index.GetStats());
    Node::Stats node = s_.node.GetStats();
    response->set_node_id(s_.node.node_id());
    response->set_store(s_.store.path());
    response->set_sandboxes(node.sandboxes);
    response->set_packs(stats.packs);
    response->set_chunks(stats.chunks);
    response->set_images(stats.images);
    response->set_store_bytes(stats.store_bytes);
    response->set_blob_server_pid(node.blob_server_pid);
    response->set_keeper_pid(node.keeper_pid);
    response->set_server_pid(::getpid());
    return OkStatus();
  };
  return ToGrpc(*context, status(), "STATUS");
}

}  // namespace esker::gateway
