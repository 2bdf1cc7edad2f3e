// ControlServer: the blob server's control socket (imagefs/blob_server_client.h is its other end).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "cache_control.h"
#include "imagefs/blob_server_types.h"

namespace esker {

// What the socket asks of the server. Thread-safe.
class ServerControl {
 public:
  virtual ~ServerControl() = default;
  virtual BlobServerStats GetStats(size_t blobs) = 0;
  virtual Status StartRecording(const std::string& name, const std::vector<BlobId>& blobs) = 0;
  virtual Result<Recording> TakeRecording(const std::string& name, bool end) = 0;
  virtual Result<uint64_t> Prefetch(const std::string& name,
                                    const std::vector<BlobRanges>& ranges) = 0;
  virtual void CancelPrefetch(const std::string& name) = 0;
};

class ControlServer {
 public:
  // Listens on `socket_path` (mode 0600; what lies there is removed). Both must outlive it. Without
  // `cache` its calls answer UNIMPLEMENTED.
  static Result<std::unique_ptr<ControlServer>> Start(const std::string& socket_path,
                                                      ServerControl& server, CacheControl* cache);
  // Cancels what is under way and waits for its threads.
  virtual ~ControlServer() = default;
};

}  // namespace esker
