// Starting a keeper that outlives us.
#pragma once

#include "base/status.h"
#include "base/unique_fd.h"
#include "executor/keeper_client.h"

namespace esker::keeper {

// Held by the one that starts a keeper, so that others wait for it instead of starting their own.
// Waits as long as the holder's start takes.
Result<UniqueFd> LockStart(const KeeperOptions& options);

// Starts BINARIES/esker-keeper in a session of its own and waits until it listens or has failed:
// then the status says why. FAILED_PRECONDITION when another keeper was faster.
Status StartKeeper(const KeeperOptions& options);

}  // namespace esker::keeper
