#include "testing/kernel_mount.h"

#include <linux/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace esker::erofs {
namespace {

Status Configure(int fs, unsigned command, const char* key, const char* value) {
  if (syscall(SYS_fsconfig, fs, command, key, value, 0) == 0) return OkStatus();
  Status status =
      ErrnoError(std::string("fsconfig ") + (key ? key : "create") + "=" + (value ? value : ""));
  char buffer[512];
  const ssize_t size = read(fs, buffer, sizeof(buffer));
  return size > 0 ? std::move(status).Wrap(std::string(buffer, size)) : status;
}

}  // namespace

Result<UniqueFd> MountErofs(const std::string& metadata_path, const std::string& data_path) {
  UniqueFd fs(static_cast<int>(syscall(SYS_fsopen, "erofs", FSOPEN_CLOEXEC)));
  if (!fs.valid()) return ErrnoError("fsopen erofs");
  ESKER_RETURN_IF_ERROR(Configure(fs.get(), FSCONFIG_SET_STRING, "source", metadata_path.c_str()));
  if (!data_path.empty()) {
    ESKER_RETURN_IF_ERROR(Configure(fs.get(), FSCONFIG_SET_STRING, "device", data_path.c_str()));
  }
  ESKER_RETURN_IF_ERROR(Configure(fs.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr));
  UniqueFd mount(
      static_cast<int>(syscall(SYS_fsmount, fs.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_RDONLY)));
  if (!mount.valid()) return ErrnoError("fsmount erofs");
  return mount;
}

}  // namespace esker::erofs
