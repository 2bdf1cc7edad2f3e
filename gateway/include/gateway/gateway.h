// Gateway: the gRPC front of one server process. docs/architecture.md.
//
// Serves the public API (proto/esker/v1) on a Unix socket (mode 0600; whoever may open it is an
// administrator) and on loopback TCP, where every call needs a key ("authorization: Bearer KEY").
// Stateless: every call goes to the node or the index behind it.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "executor/node.h"
#include "imagefs/store.h"
#include "snapshotter/index.h"

namespace esker {

struct GatewayOptions {
  std::string unix_socket;  // path; its directory must exist with mode 0700
  std::string listen;       // "127.0.0.1:7070", "" = no TCP. Loopback only: there is no TLS yet
  std::string keys_file;    // hashed keys, see gateway/keys.h; may not exist yet
  std::string version;
  size_t quick_threads = 64;  // for calls of milliseconds
  size_t slow_threads = 16;   // for snapshots, forks and pauses
  int64_t default_gc_grace_ms = 3'600'000;
};

// What Start would say of options.listen, before anything was opened or started.
Status CheckListenAddress(const GatewayOptions& options);

class Gateway {
 public:
  // Listens on return. FAILED_PRECONDITION when the port or socket is taken, INVALID_ARGUMENT for
  // an address that is not loopback. All references must outlive the gateway.
  static Result<std::unique_ptr<Gateway>> Start(const GatewayOptions& options, Store& store,
                                                Index& index, Node& node);
  // Ends calls in flight after a short grace.
  virtual ~Gateway() = default;
  // The TCP port in use (for ":0"), 0 without TCP.
  virtual int port() const = 0;
};

}  // namespace esker
