// Reads a blob's bytes from the store, every chunk compared with its digest.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "imagefs/blob_map.h"
#include "imagefs/store.h"

namespace esker {

// The first `bytes` of the blob's address space, or all of it if it is shorter, zeros between the
// chunks included. DATA_LOSS: a chunk has other bytes than its digest; NOT_FOUND: a pack is not
// (yet) visible. Small frames that hold many of the chunks are read once.
Result<std::string> ReadBlob(const Store& store, const BlobMap& map, uint64_t bytes);

}  // namespace esker
