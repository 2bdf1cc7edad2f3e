#include "net/index_service.h"

#include <openssl/crypto.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace esker::index_net {
namespace {

constexpr std::string_view kBearer = "Bearer ";
constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kMaxClaimWaitMs = 5'000;
// Beyond the staleness bound: the look-up itself takes time on a store under load.
constexpr int64_t kLeastMarginNs = 1'000'000'000;
constexpr auto kFirstPause = std::chrono::milliseconds(20);
constexpr auto kLongestPause = std::chrono::milliseconds(1000);

}  // namespace

IndexServiceImpl::IndexServiceImpl(Store& store, Index& index, Holders& holders,
                                   const Options& options)
    : store_(store), index_(index), holders_(holders), options_(options) {}

Status IndexServiceImpl::Authenticate(const grpc::ServerContext& context) const {
  auto found = context.client_metadata().find("authorization");
  if (found == context.client_metadata().end()) {
    return UnauthenticatedError("the index wants a node's key (index.key_file)");
  }
  std::string_view value(found->second.data(), found->second.size());
  if (!value.starts_with(kBearer)) return UnauthenticatedError("want authorization: Bearer KEY");
  value.remove_prefix(kBearer.size());
  if (value.size() == options_.key.size() &&
      ::CRYPTO_memcmp(value.data(), options_.key.data(), value.size()) == 0) {
    return OkStatus();
  }
  return UnauthenticatedError("this is not the index's key: copy its index.key file to the node");
}

grpc::Status IndexServiceImpl::Run(grpc::ServerContext* context,
                                   const std::function<Status()>& work) {
  Status status = Authenticate(*context);
  if (status.ok()) status = index_.CheckServing();
  if (status.ok()) status = work();
  return ToGrpc(status);
}

// --- holders -------------------------------------------------------------------------------------

grpc::Status IndexServiceImpl::Renew(grpc::ServerContext* context, const pb::RenewRequest* in,
                                     pb::RenewResponse* out) {
  return Run(context, [&]() -> Status {
    Announcement announcement;
    announcement.holder = FromProto(in->holder());
    announcement.complete = in->complete();
    ESKER_ASSIGN_OR_RETURN(announcement.images, ImagesFrom(in->images()));
    announcement.sessions.assign(in->sessions().begin(), in->sessions().end());
    ESKER_ASSIGN_OR_RETURN(Holders::Lost lost, holders_.Renew(announcement));
    out->set_lease_ms(options_.lease_ns / kNsPerMs);
    out->set_staleness_ms(options_.staleness_ns / kNsPerMs);
    for (const ImageId& image : lost.images) out->add_lost_images(BytesOf(image));
    for (const std::string& session : lost.sessions) out->add_lost_sessions(session);
    return OkStatus();
  });
}

grpc::Status IndexServiceImpl::LeaseImage(grpc::ServerContext* context,
                                          const pb::LeaseImageRequest* in,
                                          pb::LeaseImageResponse*) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(ImageId image, IdFrom<ImageId>(in->image(), "image"));
    return holders_.LeaseImage(FromProto(in->holder()), image, in->purpose());
  });
}

// --- imports -------------------------------------------------------------------------------------

template <typename Request>
Result<IndexServiceImpl::LockedImport> IndexServiceImpl::Enter(const Request& request) {
  LockedImport import;
  ESKER_ASSIGN_OR_RETURN(import.held,
                         holders_.FindImport(FromProto(request.holder()), request.session()));
  import.lock = std::unique_lock(import.held->mutex);
  return import;
}

grpc::Status IndexServiceImpl::StartImport(grpc::ServerContext* context,
                                           const pb::StartImportRequest* in,
                                           pb::StartImportResponse*) {
  return Run(context, [&] { return holders_.StartImport(FromProto(in->holder()), in->session()); });
}

grpc::Status IndexServiceImpl::EndImport(grpc::ServerContext* context,
                                         const pb::EndImportRequest* in, pb::EndImportResponse*) {
  return Run(context, [&] { return holders_.EndImport(FromProto(in->holder()), in->session()); });
}

grpc::Status IndexServiceImpl::HasChunks(grpc::ServerContext* context,
                                         const pb::HasChunksRequest* in,
                                         pb::HasChunksResponse* out) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(std::vector<ChunkRef> chunks, DecodeChunks(in->chunks()));
    ESKER_ASSIGN_OR_RETURN(LockedImport import, Enter(*in));
    ESKER_ASSIGN_OR_RETURN(std::vector<bool> known, import.held->session->HasChunks(chunks));
    for (bool one : known) out->mutable_known()->push_back(one ? '\1' : '\0');
    return OkStatus();
  });
}

grpc::Status IndexServiceImpl::UseLayer(grpc::ServerContext* context, const pb::UseLayerRequest* in,
                                        pb::FindLayerResponse* out) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(LockedImport import, Enter(*in));
    ESKER_ASSIGN_OR_RETURN(std::optional<ImageLayer> layer,
                           import.held->session->UseLayer(in->diff_id()));
    if (layer) ToProto(*layer, out->mutable_layer());
    return OkStatus();
  });
}

grpc::Status IndexServiceImpl::RememberLayer(grpc::ServerContext* context,
                                             const pb::RememberLayerRequest* in,
                                             pb::RememberLayerResponse*) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(ImageLayer layer, FromProto(in->layer()));
    ESKER_ASSIGN_OR_RETURN(LockedImport import, Enter(*in));
    return import.held->session->RememberLayer(layer);
  });
}

grpc::Status IndexServiceImpl::ClaimLayer(grpc::ServerContext* context,
                                          const pb::ClaimLayerRequest* in,
                                          pb::ClaimLayerResponse* out) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(LockedImport import, Enter(*in));
    auto& claims = import.held->claims;
    out->set_claimed(claims.contains(in->diff_id()));
    if (out->claimed()) return OkStatus();
    const auto end =
        std::chrono::steady_clock::now() +
        std::chrono::milliseconds(std::clamp<int64_t>(in->wait_ms(), 0, kMaxClaimWaitMs));
    Result<std::unique_ptr<Lease>> claim = import.held->session->ClaimLayer(in->diff_id(), [&] {
      return context->IsCancelled() || std::chrono::steady_clock::now() >= end;
    });
    if (claim.status().code() == Code::kCancelled) return OkStatus();  // not yet
    if (!claim.ok()) return std::move(claim).status();
    claims.emplace(in->diff_id(), std::move(*claim));
    out->set_claimed(true);
    return OkStatus();
  });
}

grpc::Status IndexServiceImpl::ReleaseLayer(grpc::ServerContext* context,
                                            const pb::ReleaseLayerRequest* in,
                                            pb::ReleaseLayerResponse*) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(LockedImport import, Enter(*in));
    import.held->claims.erase(in->diff_id());
    return OkStatus();
  });
}

// A pack that another machine has published may not be visible here for the staleness bound.
Result<PackWriter::Published> IndexServiceImpl::ReadPublished(const grpc::ServerContext& context,
                                                              const PackId& id) {
  const int64_t margin = std::max(options_.staleness_ns / 6, kLeastMarginNs);
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(options_.staleness_ns + margin);
  auto pause = kFirstPause;
  for (;;) {
    Result<PackFooter> footer = ReadPackFooter(store_, id);
    if (footer.ok()) return PackWriter::Published{id, std::move(*footer), 0};
    if (footer.status().code() != Code::kNotFound) return std::move(footer).status();
    if (context.IsCancelled()) return CancelledError("the node gave up");
    if (std::chrono::steady_clock::now() >= end) {
      return AbortedError("pack " + id.ToHex() +
                          " did not become visible to the index within the staleness bound, or " +
                          "garbage collection removed it: import again");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

grpc::Status IndexServiceImpl::RegisterPack(grpc::ServerContext* context,
                                            const pb::RegisterPackRequest* in,
                                            pb::RegisterPackResponse*) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(PackId id, IdFrom<PackId>(in->pack(), "pack"));
    ESKER_ASSIGN_OR_RETURN(PackWriter::Published pack, ReadPublished(*context, id));
    if (in->session().empty()) return index_.RegisterPack(pack);
    // Only now: the session may have been lost while we waited.
    ESKER_ASSIGN_OR_RETURN(LockedImport import, Enter(*in));
    return import.held->session->RegisterPack(pack);
  });
}

// --- lookups and changes -------------------------------------------------------------------------

grpc::Status IndexServiceImpl::GetBlobMap(grpc::ServerContext* context,
                                          const pb::GetBlobMapRequest* in,
                                          grpc::ServerWriter<pb::BlobMapPart>* out) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(BlobId id, IdFrom<BlobId>(in->blob(), "blob"));
    ESKER_ASSIGN_OR_RETURN(BlobMap map, index_.GetBlobMap(id));
    const std::string bytes = map.Serialise();
    for (size_t at = 0; at < bytes.size(); at += kMapPartBytes) {
      pb::BlobMapPart part;
      part.set_bytes(bytes.substr(at, kMapPartBytes));
      if (!out->Write(part)) return CancelledError("the node gave up");
    }
    return OkStatus();
  });
}

grpc::Status IndexServiceImpl::FindLayer(grpc::ServerContext* context,
                                         const pb::FindLayerRequest* in,
                                         pb::FindLayerResponse* out) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(std::optional<ImageLayer> layer, index_.FindLayer(in->diff_id()));
    if (layer) ToProto(*layer, out->mutable_layer());
    return OkStatus();
  });
}

grpc::Status IndexServiceImpl::PublishImage(grpc::ServerContext* context,
                                            const pb::PublishImageRequest* in,
                                            pb::PublishImageResponse* out) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(Manifest manifest, Manifest::FromJson(in->manifest()));
    ESKER_ASSIGN_OR_RETURN(ImageId id, index_.PublishImage(manifest));
    out->set_image(BytesOf(id));
    return OkStatus();
  });
}

grpc::Status IndexServiceImpl::GetImage(grpc::ServerContext* context, const pb::GetImageRequest* in,
                                        pb::ImageRecord* out) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(ImageId image, IdFrom<ImageId>(in->image(), "image"));
    ESKER_ASSIGN_OR_RETURN(ImageRecord record, index_.GetImage(image));
    ToProto(record, out);
    return OkStatus();
  });
}

grpc::Status IndexServiceImpl::ResolveImage(grpc::ServerContext* context,
                                            const pb::ResolveImageRequest* in,
                                            pb::ImageRecord* out) {
  return Run(context, [&]() -> Status {
    const ImageView view{in->project(), !in->restricted()};
    ESKER_ASSIGN_OR_RETURN(ImageRecord record, index_.ResolveImage(in->reference(), view));
    ToProto(record, out);
    return OkStatus();
  });
}

grpc::Status IndexServiceImpl::ListImages(grpc::ServerContext* context,
                                          const pb::ListImagesRequest*,
                                          grpc::ServerWriter<pb::ImageRecord>* out) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(std::vector<ImageRecord> records, index_.ListImages());
    for (const ImageRecord& record : records) {
      pb::ImageRecord message;
      ToProto(record, &message);
      if (!out->Write(message)) return CancelledError("the node gave up");
    }
    return OkStatus();
  });
}

grpc::Status IndexServiceImpl::ListChildren(grpc::ServerContext* context,
                                            const pb::ListChildrenRequest* in,
                                            pb::ListChildrenResponse* out) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(ImageId image, IdFrom<ImageId>(in->image(), "image"));
    ESKER_ASSIGN_OR_RETURN(std::vector<ImageId> children, index_.ListChildren(image));
    for (const ImageId& child : children) out->add_images(BytesOf(child));
    return OkStatus();
  });
}

grpc::Status IndexServiceImpl::DeleteImage(grpc::ServerContext* context,
                                           const pb::DeleteImageRequest* in,
                                           pb::DeleteImageResponse*) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(ImageId image, IdFrom<ImageId>(in->image(), "image"));
    return index_.DeleteImage(image, in->force());
  });
}

grpc::Status IndexServiceImpl::SetTag(grpc::ServerContext* context, const pb::SetTagRequest* in,
                                      pb::SetTagResponse*) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(ImageId image, IdFrom<ImageId>(in->image(), "image"));
    return index_.SetTag(in->name(), image, in->job());
  });
}

grpc::Status IndexServiceImpl::DeleteTag(grpc::ServerContext* context,
                                         const pb::DeleteTagRequest* in, pb::DeleteTagResponse*) {
  return Run(context, [&] { return index_.DeleteTag(in->name()); });
}

grpc::Status IndexServiceImpl::GetIndexStats(grpc::ServerContext* context,
                                             const pb::GetIndexStatsRequest*,
                                             pb::GetIndexStatsResponse* out) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(Index::Stats stats, index_.GetStats());
    ToProto(stats, out);
    return OkStatus();
  });
}

// --- administration ------------------------------------------------------------------------------

grpc::Status IndexServiceImpl::CollectGarbage(grpc::ServerContext* context,
                                              const pb::CollectGarbageRequest* in,
                                              pb::CollectGarbageResponse* out) {
  return Run(context, [&]() -> Status {
    GcOptions options{.grace_ns = in->grace_ns(), .caller = in->node()};
    ESKER_ASSIGN_OR_RETURN(GcReport report, index_.CollectGarbage(options));
    ToProto(report, out);
    return OkStatus();
  });
}

grpc::Status IndexServiceImpl::Rebuild(grpc::ServerContext* context, const pb::RebuildRequest*,
                                       grpc::ServerWriter<pb::RebuildEvent>* out) {
  return Run(context, [&]() -> Status {
    ESKER_ASSIGN_OR_RETURN(RebuildReport report, index_.Rebuild([&](uint64_t done, uint64_t all) {
      pb::RebuildEvent event;
      event.set_done(done);
      event.set_total(all);
      out->Write(event);  // a node that is gone is told nothing; the rebuilding goes on
    }));
    pb::RebuildEvent event;
    event.set_finished(true);
    ToProto(report, &event);
    out->Write(event);
    return OkStatus();
  });
}

}  // namespace esker::index_net
