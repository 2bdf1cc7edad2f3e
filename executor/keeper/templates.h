// What all sandboxes share: the template mount namespace and the prebuilt /dev, /sys and skeleton.
#pragma once

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker::keeper {

struct Templates {
  UniqueFd mount_namespace;  // its only mount is an empty, read-only tmpfs
  // Detached, read-only mounts made by fsmount, so that they may be cloned from any namespace.
  UniqueFd skeleton;  // proc, sys, dev: mount points that need not be in the image; empty
  UniqueFd dev;       // null zero full random urandom tty, links, pts shm mqueue
  UniqueFd sys;       // cpu and memory topology as plain copies; nothing of the real /sys
};

// Needs CAP_SYS_ADMIN and CAP_MKNOD. Leaves no process and no visible mount.
Result<Templates> MakeTemplates();

}  // namespace esker::keeper
