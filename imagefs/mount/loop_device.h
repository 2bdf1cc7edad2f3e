// LoopDevice: a file as a read-only block device.
#pragma once

#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker {

struct LoopDevice {
  UniqueFd fd;       // the device goes away with its last user (LO_FLAGS_AUTOCLEAR)
  std::string path;  // "/dev/loopN"

  // Read-only, with direct I/O where the file allows it. RESOURCE_EXHAUSTED when no device can be
  // had; needs CAP_SYS_ADMIN.
  static Result<LoopDevice> Attach(const std::string& file);
};

}  // namespace esker
