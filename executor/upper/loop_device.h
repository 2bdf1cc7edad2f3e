// Loop devices that clear themselves with their last user (see loop(4)).
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker {

struct LoopDevice {
  std::string path;  // "/dev/loop3"
  UniqueFd fd;       // keeps it attached until something has mounted it
};

// Attaches `backing` (opened O_RDWR) with autoclear and direct I/O, so that its pages are cached
// once. UNIMPLEMENTED where there are no loop devices.
Result<LoopDevice> AttachLoop(int backing);
// The device that `backing` is attached to, if any.
Result<std::optional<LoopDevice>> FindLoop(int backing);
// Tells the device that its backing file has grown.
Status RefreshLoopSize(int loop_fd);

}  // namespace esker
