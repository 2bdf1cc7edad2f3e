#pragma once

#include "call.h"
#include "esker/v1/admin.grpc.pb.h"

namespace esker::gateway {

class AdminService final : public v1::AdminService::Service {
 public:
  explicit AdminService(Services& services) : s_(services) {}
  grpc::Status GetVersion(grpc::ServerContext* context, const v1::GetVersionRequest* request,
                          v1::GetVersionResponse* response) override;
  grpc::Status CollectGarbage(grpc::ServerContext* context,
                              const v1::CollectGarbageRequest* request,
                              v1::CollectGarbageResponse* response) override;
  grpc::Status RebuildIndex(grpc::ServerContext* context, const v1::RebuildIndexRequest* request,
                            grpc::ServerWriter<v1::RebuildIndexEvent>* writer) override;
  grpc::Status GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest* request,
                         v1::GetStatusResponse* response) override;
  grpc::Status ListCache(grpc::ServerContext* context, const v1::ListCacheRequest* request,
                         grpc::ServerWriter<v1::CachedBlob>* writer) override;
  grpc::Status PruneCache(grpc::ServerContext* context, const v1::PruneCacheRequest* request,
                          v1::PruneCacheResponse* response) override;
  grpc::Status VerifyCache(grpc::ServerContext* context, const v1::VerifyCacheRequest* request,
                           grpc::ServerWriter<v1::VerifiedBlob>* writer) override;

 private:
  Status CheckAdmin(grpc::ServerContext* context) const;
  Services& s_;
};

}  // namespace esker::gateway
