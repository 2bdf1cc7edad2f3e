// The two kinds of store and what their factory gives them.
#pragma once

#include <memory>
#include <string>

#include "executor/upper_store.h"
#include "pool.h"

namespace esker {

struct StoreHome {
  std::string path;
  UniqueFd fd;    // O_RDONLY | O_DIRECTORY of the store's directory
  UniqueFd lock;  // holds the flock
};

Result<std::unique_ptr<UpperStore>> OpenBtrfsStore(StoreHome home, const PoolShape& shape);
// `reason`: why it is not btrfs.
Result<std::unique_ptr<UpperStore>> OpenPlainStore(StoreHome home, std::string reason);

// Where the plain kind keeps its volumes.
inline std::string PlainDirectory(const std::string& directory) { return directory + "/plain"; }

}  // namespace esker
