// One push, as `image push` and `image sync` do it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "client.h"
#include "esker/v1/image.grpc.pb.h"
#include "push_source.h"

namespace esker::cli {

struct PushTarget {
  std::string name, project, job;
};
// Called from another thread while layers are sent; total: bytes to read, 0 if not known.
using PushProgressFunction = std::function<void(const v1::PushProgress& progress, uint64_t total)>;

Result<v1::PushEvent::Done> PushImage(const GlobalOptions& options,
                                      const std::shared_ptr<grpc::Channel>& channel,
                                      PushSource& source, const PushTarget& target,
                                      const PushProgressFunction& on_progress);

}  // namespace esker::cli
