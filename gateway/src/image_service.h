#pragma once

#include "call.h"
#include "esker/v1/image.grpc.pb.h"

namespace esker::gateway {

// Pushes are few and long, so these are plain blocking handlers on gRPC's own threads.
class ImageService final : public v1::ImageService::Service {
 public:
  explicit ImageService(Services& services) : s_(services) {}
  grpc::Status Push(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::PushEvent, v1::PushRequest>* stream) override;
  grpc::Status List(grpc::ServerContext* context, const v1::ListImagesRequest* request,
                    v1::ListImagesResponse* response) override;
  grpc::Status Inspect(grpc::ServerContext* context, const v1::InspectImageRequest* request,
                       v1::Image* response) override;
  grpc::Status Remove(grpc::ServerContext* context, const v1::RemoveImageRequest* request,
                      v1::RemoveImageResponse* response) override;
  grpc::Status Tag(grpc::ServerContext* context, const v1::TagImageRequest* request,
                   v1::Image* response) override;
  grpc::Status Export(grpc::ServerContext* context, const v1::ExportImageRequest* request,
                      grpc::ServerWriter<v1::ExportEvent>* stream) override;

 private:
  Services& s_;
};

class SnapshotService final : public v1::SnapshotService::Service {
 public:
  explicit SnapshotService(Services& services) : s_(services) {}
  grpc::Status List(grpc::ServerContext* context, const v1::ListSnapshotsRequest* request,
                    v1::ListImagesResponse* response) override;
  grpc::Status Remove(grpc::ServerContext* context, const v1::RemoveSnapshotRequest* request,
                      v1::RemoveImageResponse* response) override;

 private:
  Services& s_;
};

}  // namespace esker::gateway
