// A faithful copy of a directory tree, for file systems that cannot clone one.
#pragma once

#include "base/status.h"

namespace esker {

// Copies all below `from` into the empty directory `to` (both O_RDONLY | O_DIRECTORY), and the
// attributes of `from` itself: types, modes, owners, times, extended attributes, hard links, holes.
// Shares file data where the file system can. Nothing may change below `from` meanwhile. Links are
// never followed. RESOURCE_EXHAUSTED when it is nested more than 512 deep.
Status CopyTree(int from, int to);

}  // namespace esker
