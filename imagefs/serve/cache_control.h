// CacheControl: what the control socket needs of the cache (`esker cache {ls,prune,verify}`).
#pragma once

#include <functional>
#include <vector>

#include "base/status.h"
#include "imagefs/blob_server_types.h"

namespace esker {

// Thread-safe; called from the control socket's threads, and may take long. `stop` becomes true
// when nobody waits for the answer any more.
class CacheControl {
 public:
  virtual ~CacheControl() = default;
  virtual CacheStats Stats() = 0;
  // `each` returns false to stop.
  virtual Status List(const std::function<bool(const CachedBlob&)>& each) = 0;
  virtual Result<PruneReport> Prune(const PruneRequest& request,
                                    const std::function<bool()>& stop) = 0;
  // Empty: all blobs.
  virtual Status Verify(const std::vector<BlobId>& blobs,
                        const std::function<bool(const VerifiedBlob&)>& each,
                        const std::function<bool()>& stop) = 0;
};

}  // namespace esker
