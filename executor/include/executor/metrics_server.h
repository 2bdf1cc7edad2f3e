// MetricsServer: a node's figures for Prometheus, at http://LISTEN/metrics (text format 0.0.4).
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "executor/node.h"

namespace esker {

// Figures are gathered anew for each request. No authentication: listen where only those may
// connect who may know them. What sandboxes and clients choose (names, commands, images) is in no
// label.
class MetricsServer {
 public:
  // `listen` is HOST:PORT; port 0 takes a free one. The node must outlive it.
  static Result<std::unique_ptr<MetricsServer>> Start(const std::string& listen, Node& node);
  virtual ~MetricsServer() = default;
  virtual int port() const = 0;
};

// The text that a request is answered with.
std::string MetricsText(const NodeMetrics& metrics);

}  // namespace esker
