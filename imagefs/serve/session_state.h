// The saved INIT request of a FUSE session (docs/formats/cache.md, "session state").
#pragma once

#include <string>

#include "base/status.h"

namespace esker {

struct SessionState {
  std::string init_request;  // as read from the device: fuse_in_header and fuse_init_in
};

// Replaced atomically; not synced, since a session does not outlive its machine.
Status SaveSessionState(const std::string& path, const SessionState& state);
// NOT_FOUND: none saved. DATA_LOSS: damaged.
Result<SessionState> LoadSessionState(const std::string& path);

}  // namespace esker
