// The index's side of the calls of nodes. One function per call; what nodes hold is in Holders.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>

#include "esker/internal/v1/index.grpc.pb.h"
#include "net/convert.h"
#include "net/holders.h"

namespace esker::index_net {

class IndexServiceImpl final : public pb::IndexService::Service {
 public:
  struct Options {
    std::string key;
    int64_t lease_ns = 0, staleness_ns = 0;
  };
  IndexServiceImpl(Store& store, Index& index, Holders& holders, const Options& options);

#define ESKER_UNARY(Name)                                                      \
  grpc::Status Name(grpc::ServerContext* context, const pb::Name##Request* in, \
                    pb::Name##Response* out) override
  ESKER_UNARY(Renew);
  ESKER_UNARY(LeaseImage);
  ESKER_UNARY(StartImport);
  ESKER_UNARY(EndImport);
  ESKER_UNARY(HasChunks);
  ESKER_UNARY(RememberLayer);
  ESKER_UNARY(ClaimLayer);
  ESKER_UNARY(ReleaseLayer);
  ESKER_UNARY(RegisterPack);
  ESKER_UNARY(FindLayer);
  ESKER_UNARY(PublishImage);
  ESKER_UNARY(ListChildren);
  ESKER_UNARY(DeleteImage);
  ESKER_UNARY(SetTag);
  ESKER_UNARY(DeleteTag);
  ESKER_UNARY(GetIndexStats);
  ESKER_UNARY(CollectGarbage);
#undef ESKER_UNARY
  grpc::Status UseLayer(grpc::ServerContext* context, const pb::UseLayerRequest* in,
                        pb::FindLayerResponse* out) override;
  grpc::Status GetImage(grpc::ServerContext* context, const pb::GetImageRequest* in,
                        pb::ImageRecord* out) override;
  grpc::Status ResolveImage(grpc::ServerContext* context, const pb::ResolveImageRequest* in,
                            pb::ImageRecord* out) override;
  grpc::Status GetBlobMap(grpc::ServerContext* context, const pb::GetBlobMapRequest* in,
                          grpc::ServerWriter<pb::BlobMapPart>* out) override;
  grpc::Status ListImages(grpc::ServerContext* context, const pb::ListImagesRequest* in,
                          grpc::ServerWriter<pb::ImageRecord>* out) override;
  grpc::Status Rebuild(grpc::ServerContext* context, const pb::RebuildRequest* in,
                       grpc::ServerWriter<pb::RebuildEvent>* out) override;

 private:
  // Checks the key and that this index still owns its store, then does `work`.
  grpc::Status Run(grpc::ServerContext* context, const std::function<Status()>& work);
  Status Authenticate(const grpc::ServerContext& context) const;
  // The import that a request names, locked for this call.
  struct LockedImport {
    std::shared_ptr<HeldSession> held;
    std::unique_lock<std::mutex> lock;
  };
  template <typename Request>
  Result<LockedImport> Enter(const Request& request);
  Result<PackWriter::Published> ReadPublished(const grpc::ServerContext& context, const PackId& id);

  Store& store_;
  Index& index_;
  Holders& holders_;
  const Options options_;
};

}  // namespace esker::index_net
