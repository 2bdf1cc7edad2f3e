// Between the control socket's messages and the plain types of imagefs/blob_server_types.h.
#pragma once

#include "base/status.h"
#include "esker/internal/v1/blob_server.pb.h"
#include "imagefs/blob_server_types.h"

namespace esker {

namespace wire = ::esker::internal::v1;

std::string ToWire(const BlobId& id);
// INVALID_ARGUMENT unless it has 32 bytes.
Result<BlobId> FromWire(const std::string& bytes);

void ToWire(const BlobServerStats& stats, wire::GetStatsResponse* out);
Result<BlobServerStats> FromWire(const wire::GetStatsResponse& in);

void ToWire(const BlobRanges& ranges, wire::BlobRanges* out);
Result<BlobRanges> FromWire(const wire::BlobRanges& in);

void ToWire(const CachedBlob& blob, wire::CachedBlob* out);
Result<CachedBlob> FromWire(const wire::CachedBlob& in);
void ToWire(const VerifiedBlob& blob, wire::VerifiedBlob* out);
Result<VerifiedBlob> FromWire(const wire::VerifiedBlob& in);

}  // namespace esker
