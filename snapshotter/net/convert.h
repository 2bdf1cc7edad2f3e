// The index's types as messages and back. What comes in is checked.
#pragma once

#include <grpcpp/grpcpp.h>

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "esker/internal/v1/index.pb.h"
#include "net/holders.h"
#include "snapshotter/index.h"

namespace esker::index_net {

namespace pb = ::esker::internal::v1;

inline constexpr size_t kMaxChunksPerCall = 16384;
inline constexpr size_t kMapPartBytes = 1u << 20;
inline constexpr int kMaxMessageBytes = 64 << 20;  // a Renew of a million images fits

grpc::Status ToGrpc(const Status& status);
Status FromGrpc(const grpc::Status& status);

Result<Digest> DigestFrom(const std::string& bytes, std::string_view what);
template <typename Id>
Result<Id> IdFrom(const std::string& bytes, std::string_view what) {
  ESKER_ASSIGN_OR_RETURN(Digest digest, DigestFrom(bytes, what));
  return Id{digest};
}
template <typename Id>
std::string BytesOf(const Id& id) {
  return std::string(id.digest.AsBytes());
}
Result<std::vector<ImageId>> ImagesFrom(
    const google::protobuf::RepeatedPtrField<std::string>& bytes);

std::string EncodeChunks(std::span<const ChunkRef> chunks);
Result<std::vector<ChunkRef>> DecodeChunks(const std::string& bytes);

void ToProto(const Holder& holder, pb::Holder* out);
Holder FromProto(const pb::Holder& holder);
void ToProto(const ImageLayer& layer, pb::Layer* out);
Result<ImageLayer> FromProto(const pb::Layer& layer);
void ToProto(const ImageRecord& record, pb::ImageRecord* out);
Result<ImageRecord> FromProto(const pb::ImageRecord& record);
void ToProto(const Index::Stats& stats, pb::GetIndexStatsResponse* out);
Index::Stats FromProto(const pb::GetIndexStatsResponse& stats);
void ToProto(const GcReport& report, pb::CollectGarbageResponse* out);
GcReport FromProto(const pb::CollectGarbageResponse& report);
void ToProto(const RebuildReport& report, pb::RebuildEvent* out);
RebuildReport FromProto(const pb::RebuildEvent& event);

}  // namespace esker::index_net
