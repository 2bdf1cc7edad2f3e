// Mounting layers: metadata image + data file -> a detached EROFS mount. Used by the keeper.
#pragma once

#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker {

struct LayerMountSpec {
  std::string metadata_path;  // validated before it comes here
  std::string data_path;      // "" when the layer has no data device
  // Taken when there is no file data_path: a complete file may be evicted until it is mounted. ""
  // for none.
  std::string served_path;
};
struct LayerMount {
  UniqueFd mount;    // detached mount (fsmount), read-only, nodev, nosuid cleared, usable by
                     // move_mount, open_tree and as an overlay layer
  UniqueFd loop[2];  // loop devices when the kernel cannot mount files (autoclear), else empty
  bool file_backed = true;
};
// fsopen("erofs") + fsconfig source/device=; falls back to loop devices on ENOTBLK and says so in
// file_backed. No mount appears in any mount table. Needs CAP_SYS_ADMIN.
Result<LayerMount> MountLayer(const LayerMountSpec& spec);

}  // namespace esker
