#include "executor/metrics_server.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/text_serializer.h>

#include <exception>

#include "families.h"

namespace esker {
namespace {

constexpr size_t kThreads = 2;

class NodeFigures final : public prometheus::Collectable {
 public:
  explicit NodeFigures(Node& node) : node_(node) {}
  std::vector<prometheus::MetricFamily> Collect() const override {
    return MakeFamilies(node_.GetMetrics());
  }

 private:
  Node& node_;
};

class ExposerServer final : public MetricsServer {
 public:
  explicit ExposerServer(Node& node) : figures_(std::make_shared<NodeFigures>(node)) {}

  // The library throws when it cannot listen.
  Status Listen(const std::string& listen) {
    try {
      exposer_ = std::make_unique<prometheus::Exposer>(listen, kThreads);
      exposer_->RegisterCollectable(figures_);
    } catch (const std::exception& error) {
      return UnavailableError("listen for metrics on " + listen + ": " + error.what() +
                              " (set metrics.listen to another address, or to \"\" for none)");
    }
    return OkStatus();
  }
  int port() const override {
    std::vector<int> ports = exposer_->GetListeningPorts();
    return ports.empty() ? 0 : ports.front();
  }

 private:
  std::shared_ptr<NodeFigures> figures_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace

Result<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen, Node& node) {
  auto server = std::make_unique<ExposerServer>(node);
  ESKER_RETURN_IF_ERROR(server->Listen(listen));
  return std::unique_ptr<MetricsServer>(std::move(server));
}

std::string MetricsText(const NodeMetrics& metrics) {
  return prometheus::TextSerializer().Serialize(MakeFamilies(metrics));
}

}  // namespace esker
