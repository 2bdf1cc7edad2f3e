// Starting a keeper that outlives us.
#pragma once

#include "base/status.h"
#include "executor/keeper_client.h"

namespace esker::keeper {

// Starts BINARIES/esker-keeper in a session of its own and waits until it listens or has failed:
// then the status says why. FAILED_PRECONDITION when another keeper was faster.
Status StartKeeper(const KeeperOptions& options);

}  // namespace esker::keeper
