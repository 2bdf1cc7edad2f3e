#include "net/convert.h"

#include <cstring>

#include "base/wire.h"

namespace esker::index_net {
namespace {

constexpr size_t kDigestBytes = sizeof(Digest::bytes);
constexpr size_t kChunkBytes = kDigestBytes + sizeof(uint32_t);
constexpr size_t kMaxErrorText = 4096;  // an HTTP/2 header must hold it

}  // namespace

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      status.message().substr(0, kMaxErrorText));
}

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  return Status(static_cast<Code>(status.error_code()), status.error_message());
}

Result<Digest> DigestFrom(const std::string& bytes, std::string_view what) {
  if (bytes.size() != kDigestBytes) {
    return InvalidArgumentError(std::string(what) + ": a digest has 32 bytes, not " +
                                std::to_string(bytes.size()));
  }
  Digest digest;
  std::memcpy(digest.bytes.data(), bytes.data(), kDigestBytes);
  return digest;
}

Result<std::vector<ImageId>> ImagesFrom(
    const google::protobuf::RepeatedPtrField<std::string>& bytes) {
  std::vector<ImageId> images;
  images.reserve(static_cast<size_t>(bytes.size()));
  for (const std::string& one : bytes) {
    ESKER_ASSIGN_OR_RETURN(ImageId image, IdFrom<ImageId>(one, "image"));
    images.push_back(image);
  }
  return images;
}

std::string EncodeChunks(std::span<const ChunkRef> chunks) {
  WireWriter out;
  for (const ChunkRef& chunk : chunks) {
    out.PutDigest(chunk.digest);
    out.Put(chunk.length);
  }
  return out.Take();
}

Result<std::vector<ChunkRef>> DecodeChunks(const std::string& bytes) {
  const size_t count = bytes.size() / kChunkBytes;
  if (bytes.size() % kChunkBytes != 0 || count > kMaxChunksPerCall) {
    return InvalidArgumentError("a list of chunks cannot have " + std::to_string(bytes.size()) +
                                " bytes");
  }
  std::vector<ChunkRef> chunks(count);
  WireReader in(bytes);
  for (ChunkRef& chunk : chunks) {
    chunk.digest = in.GetDigest();
    chunk.length = in.Get<uint32_t>();
  }
  return chunks;
}

void ToProto(const Holder& holder, pb::Holder* out) {
  out->set_node(holder.node);
  out->set_epoch(holder.epoch);
  out->set_sequence(holder.sequence);
}

Holder FromProto(const pb::Holder& holder) {
  return Holder{holder.node(), holder.epoch(), holder.sequence()};
}

void ToProto(const ImageLayer& layer, pb::Layer* out) {
  out->set_metadata(BytesOf(layer.metadata));
  out->set_data(BytesOf(layer.data));
  out->set_metadata_bytes(layer.metadata_bytes);
  out->set_data_bytes(layer.data_bytes);
  out->set_source_digest(layer.source_digest);
  out->set_diff_id(layer.diff_id);
}

Result<ImageLayer> FromProto(const pb::Layer& layer) {
  ImageLayer out;
  ESKER_ASSIGN_OR_RETURN(out.metadata, IdFrom<BlobId>(layer.metadata(), "a layer's metadata"));
  ESKER_ASSIGN_OR_RETURN(out.data, IdFrom<BlobId>(layer.data(), "a layer's data"));
  out.metadata_bytes = layer.metadata_bytes();
  out.data_bytes = layer.data_bytes();
  out.source_digest = layer.source_digest();
  out.diff_id = layer.diff_id();
  return out;
}

void ToProto(const ImageRecord& record, pb::ImageRecord* out) {
  out->set_id(BytesOf(record.id));
  out->set_manifest(record.manifest.ToJson());
  out->set_published_ns(record.published_ns);
  for (const std::string& tag : record.tags) out->add_tags(tag);
  for (const auto& [tag, job] : record.jobs) (*out->mutable_jobs())[tag] = job;
  out->set_plain_bytes(record.plain_bytes);
}

Result<ImageRecord> FromProto(const pb::ImageRecord& record) {
  ImageRecord out;
  ESKER_ASSIGN_OR_RETURN(out.id, IdFrom<ImageId>(record.id(), "an image"));
  ESKER_ASSIGN_OR_RETURN(out.manifest, Manifest::FromJson(record.manifest()));
  out.published_ns = record.published_ns();
  out.tags.assign(record.tags().begin(), record.tags().end());
  out.jobs.insert(record.jobs().begin(), record.jobs().end());
  out.plain_bytes = record.plain_bytes();
  return out;
}

void ToProto(const Index::Stats& stats, pb::GetIndexStatsResponse* out) {
  out->set_packs(stats.packs);
  out->set_chunks(stats.chunks);
  out->set_blobs(stats.blobs);
  out->set_images(stats.images);
  out->set_tags(stats.tags);
  out->set_store_bytes(stats.store_bytes);
}

Index::Stats FromProto(const pb::GetIndexStatsResponse& stats) {
  Index::Stats out;
  out.packs = stats.packs();
  out.chunks = stats.chunks();
  out.blobs = stats.blobs();
  out.images = stats.images();
  out.tags = stats.tags();
  out.store_bytes = stats.store_bytes();
  return out;
}

void ToProto(const GcReport& report, pb::CollectGarbageResponse* out) {
  out->set_packs_live(report.packs_live);
  out->set_packs_deleted(report.packs_deleted);
  out->set_bytes_deleted(report.bytes_deleted);
  out->set_images_live(report.images_live);
  out->set_images_deleted(report.images_deleted);
  out->set_packs_condemned(report.packs_condemned);
  out->set_temporaries_deleted(report.temporaries_deleted);
}

GcReport FromProto(const pb::CollectGarbageResponse& report) {
  GcReport out;
  out.packs_live = report.packs_live();
  out.packs_deleted = report.packs_deleted();
  out.bytes_deleted = report.bytes_deleted();
  out.images_live = report.images_live();
  out.images_deleted = report.images_deleted();
  out.packs_condemned = report.packs_condemned();
  out.temporaries_deleted = report.temporaries_deleted();
  return out;
}

void ToProto(const RebuildReport& report, pb::RebuildEvent* out) {
  out->set_packs(report.packs);
  out->set_images(report.images);
  out->set_tags(report.tags);
  out->set_damaged(report.damaged);
  for (const std::string& name : report.damaged_names) out->add_damaged_names(name);
}

RebuildReport FromProto(const pb::RebuildEvent& event) {
  RebuildReport out;
  out.packs = event.packs();
  out.images = event.images();
  out.tags = event.tags();
  out.damaged = event.damaged();
  out.damaged_names.assign(event.damaged_names().begin(), event.damaged_names().end());
  return out;
}

}  // namespace esker::index_net
