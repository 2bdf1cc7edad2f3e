// The node's figures as Prometheus families; docs/operations.md lists them.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "executor/node_metrics.h"

namespace esker {

std::vector<prometheus::MetricFamily> MakeFamilies(const NodeMetrics& metrics);

}  // namespace esker
