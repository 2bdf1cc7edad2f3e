#include "testing/kernel_mount.h"

#include <linux/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace esker::erofs {
namespace {

Status Configure(int fs, unsigned command, const char* key, const char* value, int fd = 0) {
  if (syscall(SYS_fsconfig, fs, command, key, value, fd) == 0) return OkStatus();
  Status status =
      ErrnoError(std::string("fsconfig ") + (key ? key : "create") + "=" + (value ? value : ""));
  char buffer[512];
  const ssize_t size = read(fs, buffer, sizeof(buffer));
  return size > 0 ? std::move(status).Wrap(std::string(buffer, size)) : status;
}

Result<UniqueFd> Finish(int fs) {
  ESKER_RETURN_IF_ERROR(Configure(fs, FSCONFIG_CMD_CREATE, nullptr, nullptr));
  UniqueFd mount(static_cast<int>(syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_RDONLY)));
  if (!mount.valid()) return ErrnoError("fsmount");
  return mount;
}

}  // namespace

Result<UniqueFd> MountErofs(const std::string& metadata_path, const std::string& data_path) {
  UniqueFd fs(static_cast<int>(syscall(SYS_fsopen, "erofs", FSOPEN_CLOEXEC)));
  if (!fs.valid()) return ErrnoError("fsopen erofs");
  ESKER_RETURN_IF_ERROR(Configure(fs.get(), FSCONFIG_SET_STRING, "source", metadata_path.c_str()));
  if (!data_path.empty()) {
    ESKER_RETURN_IF_ERROR(Configure(fs.get(), FSCONFIG_SET_STRING, "device", data_path.c_str()));
  }
  return Finish(fs.get());
}

Result<UniqueFd> MountOverlay(const std::vector<int>& layers) {
  UniqueFd fs(static_cast<int>(syscall(SYS_fsopen, "overlay", FSOPEN_CLOEXEC)));
  if (!fs.valid()) return ErrnoError("fsopen overlay");
  for (int layer : layers) {
    ESKER_RETURN_IF_ERROR(Configure(fs.get(), FSCONFIG_SET_FD, "lowerdir+", nullptr, layer));
  }
  return Finish(fs.get());
}

}  // namespace esker::erofs
