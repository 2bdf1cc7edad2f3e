// Directories that an upper layer does not mention keep their lower layer's attributes.
#pragma once

#include <vector>

#include "base/status.h"
#include "imagefs/manifest.h"
#include "imagefs/store.h"
#include "snapshotter/index.h"

namespace esker {

// Gives every layer (lowest first) the metadata blob that is right above the layers below it: the
// same as before wherever nothing differs, else one in a new pack, registered, that `session`
// keeps. Data blobs, digests and diff_ids stay. The same layers always give the same ids, and what
// came out may go in again, over other layers, too.
Status ResolveImplicitDirectories(Store& store, Index& index, ImportSession& session,
                                  std::vector<ImageLayer>& layers);

}  // namespace esker
