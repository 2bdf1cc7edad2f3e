// The node's image cache: what it holds, pruning, verification.
#include <map>
#include <set>

#include "admin_service.h"
#include "imagefs/blob_server_client.h"

namespace esker::gateway {
namespace {

// Which images have a data blob, and whether a sandbox runs on one of them.
struct BlobUse {
  std::vector<std::string> images;
  bool in_use = false;
};

Result<std::map<BlobId, BlobUse>> UsesOfBlobs(Services& services) {
  ESKER_ASSIGN_OR_RETURN(std::vector<ImageRecord> images, services.index.ListImages());
  std::set<ImageId> running;
  constexpr size_t kAll = SIZE_MAX;
  for (const SandboxInfo& sandbox : services.node.List(
           /*include_ended=*/false, "", kAll, [](const SandboxInfo&) { return true; })) {
    running.insert(sandbox.image);
  }
  std::map<BlobId, BlobUse> uses;
  for (const ImageRecord& image : images) {
    for (const ImageLayer& layer : image.manifest.layers) {
      if (!layer.has_data()) continue;
      BlobUse& use = uses[layer.data];
      use.in_use = use.in_use || running.contains(image.id);
      if (image.tags.empty()) use.images.push_back(image.id.ToHex());
      use.images.insert(use.images.end(), image.tags.begin(), image.tags.end());
    }
  }
  return uses;
}

Result<BlobServerClient*> BlobServerOf(Services& services) {
  BlobServerClient* client = services.node.blob_server();
  if (client == nullptr) return UnimplementedError("this server has no node, so no image cache");
  return client;
}

}  // namespace

grpc::Status AdminService::ListCache(grpc::ServerContext* context, const v1::ListCacheRequest*,
                                     grpc::ServerWriter<v1::CachedBlob>* writer) {
  auto list = [&]() -> Status {
    ESKER_RETURN_IF_ERROR(CheckAdmin(context));
    ESKER_ASSIGN_OR_RETURN(BlobServerClient * client, BlobServerOf(s_));
    ESKER_ASSIGN_OR_RETURN(auto uses, UsesOfBlobs(s_));
    return client->ListCache([&](const CachedBlob& blob) {
      v1::CachedBlob out;
      out.set_blob(blob.id.ToHex());
      const BlobUse& use = uses[blob.id];
      for (const std::string& image : use.images) out.add_images(image);
      out.set_size_bytes(blob.size_bytes);
      out.set_cached_bytes(blob.cached_bytes);
      out.set_complete(blob.complete);
      out.set_mounted(blob.mounted || use.in_use);
      out.set_last_used_ms(blob.last_used_ms);
      out.set_directory(blob.directory);
      return writer->Write(out);
    });
  };
  return ToGrpc(*context, list(), "CACHE");
}

grpc::Status AdminService::PruneCache(grpc::ServerContext* context,
                                      const v1::PruneCacheRequest* request,
                                      v1::PruneCacheResponse* response) {
  auto prune = [&]() -> Status {
    ESKER_RETURN_IF_ERROR(CheckAdmin(context));
    if (request->unused_for_ms() < 0) {
      return InvalidArgumentError("unused_for_ms must not be negative");
    }
    ESKER_ASSIGN_OR_RETURN(BlobServerClient * client, BlobServerOf(s_));
    ESKER_ASSIGN_OR_RETURN(
        PruneReport report,
        client->PruneCache({request->keep_bytes(), request->unused_for_ms(), request->dry_run()}));
    response->set_freed_bytes(report.freed_bytes);
    response->set_kept_bytes(report.kept_bytes);
    response->set_blobs(report.blobs_touched);
    return OkStatus();
  };
  return ToGrpc(*context, prune(), "CACHE");
}

grpc::Status AdminService::VerifyCache(grpc::ServerContext* context,
                                       const v1::VerifyCacheRequest* request,
                                       grpc::ServerWriter<v1::VerifiedBlob>* writer) {
  auto verify = [&]() -> Status {
    ESKER_RETURN_IF_ERROR(CheckAdmin(context));
    std::vector<BlobId> blobs;
    for (const std::string& hex : request->blobs()) {
      Result<BlobId> id = BlobId::FromHex(hex);
      if (!id.ok()) return InvalidArgumentError("not a blob id: " + hex);
      blobs.push_back(*id);
    }
    ESKER_ASSIGN_OR_RETURN(BlobServerClient * client, BlobServerOf(s_));
    return client->VerifyCache(blobs, [&](const VerifiedBlob& blob) {
      v1::VerifiedBlob out;
      out.set_blob(blob.id.ToHex());
      out.set_chunks_checked(blob.chunks_checked);
      out.set_chunks_dropped(blob.chunks_dropped);
      out.set_error(blob.error);
      return writer->Write(out);
    });
  };
  return ToGrpc(*context, verify(), "CACHE");
}

}  // namespace esker::gateway
