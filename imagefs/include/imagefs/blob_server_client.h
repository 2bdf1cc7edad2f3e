// BlobServerClient: the node's end of the blob server's control socket.
//
// The socket is DATA/run/imagefs.sock of the node's data directory, mode 0600. The server may be
// replaced at any instant: calls fail with UNAVAILABLE while there is none, and work again with the
// next one, which knows nothing of recordings and prefetches of the one before. No call is needed
// for reads to work.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "imagefs/blob_server_types.h"

namespace esker {

// Thread-safe. Every call blocks until its answer or its deadline: UNAVAILABLE at once when nobody
// listens, DEADLINE_EXCEEDED when somebody does and does not answer (2 s, except where said).
class BlobServerClient {
 public:
  // Connects at the first call, so there need not be a server yet.
  static std::unique_ptr<BlobServerClient> Create(const std::string& socket_path);
  virtual ~BlobServerClient() = default;

  virtual Result<BlobServerStats> GetStats(uint32_t blobs) = 0;

  // See the proto for what each promises. Blobs that the server does not know are left out.
  virtual Status StartRecording(const std::string& name, const std::vector<BlobId>& blobs) = 0;
  virtual Result<Recording> TakeRecording(const std::string& name, bool end) = 0;
  // Value: plain bytes that are not here yet and will be fetched.
  virtual Result<uint64_t> Prefetch(const std::string& name,
                                    const std::vector<BlobRanges>& ranges) = 0;
  virtual Status CancelPrefetch(const std::string& name) = 0;

  // 60 s. `each` returns false to stop.
  virtual Status ListCache(const std::function<bool(const CachedBlob&)>& each) = 0;
  // 10 min.
  virtual Result<PruneReport> PruneCache(const PruneRequest& request) = 0;
  // An hour: reads every cached byte. No blobs given: all.
  virtual Status VerifyCache(const std::vector<BlobId>& blobs,
                             const std::function<bool(const VerifiedBlob&)>& each) = 0;
};

// Of a node's data directory.
inline std::string BlobServerSocket(const std::string& node_data_directory) {
  return node_data_directory + "/run/imagefs.sock";
}

}  // namespace esker
