// Mounting the blob server's file system; used by the keeper, which keeps the descriptor.
#include <fcntl.h>
#include <sys/mount.h>

#include <string>

#include "base/io.h"
#include "fuse_device.h"
#include "imagefs/blob_server.h"

namespace esker {

Result<UniqueFd> MountBlobFs(const std::string& mountpoint) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fuse, OpenFile("/dev/fuse", O_RDWR | O_CLOEXEC));
  std::string options = "fd=" + std::to_string(fuse.get()) +
                        ",rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions" +
                        ",max_read=" + std::to_string(kMaxFuseRead);
  if (::mount("esker-imagefs", mountpoint.c_str(), "fuse.esker",
              MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME, options.c_str()) != 0) {
    return ErrnoError("mount the blob file system on " + mountpoint);
  }
  return fuse;
}

}  // namespace esker
