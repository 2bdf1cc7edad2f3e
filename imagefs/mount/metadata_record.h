// The record beside a metadata image that says that it was verified and validated, and against
// what. docs/formats/cache.md.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "imagefs/cache_layout.h"

namespace esker {

struct MetadataRecord {
  BlobId id;
  uint64_t metadata_bytes = 0;
  uint64_t data_device_bytes = 0;  // what the file system needs at least
};

std::string MetadataRecordPath(const CacheLayout& cache, const BlobId& id);
// Durable on return. The image itself must be durable under its name before.
Status SaveMetadataRecord(const CacheLayout& cache, const MetadataRecord& record);
// An error unless the record is intact and the image has the size that it says.
Result<MetadataRecord> LoadMetadataRecord(const CacheLayout& cache, const BlobId& id);

}  // namespace esker
