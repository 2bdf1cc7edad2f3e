#include "imagefs/layer_mount.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>

#include "base/io.h"
#include "base/log.h"
#include "loop_device.h"

namespace esker {
namespace {

// What the kernel says in a mount context's log, for the message of an error.
std::string ContextLog(int context) {
  std::string log;
  char line[512];
  ssize_t n;
  while ((n = ::read(context, line, sizeof(line))) > 0) {
    log += log.empty() ? " (kernel: " : "; ";
    log.append(line, static_cast<size_t>(n));
    while (!log.empty() && log.back() == '\n') log.pop_back();
  }
  return log.empty() ? log : log + ")";
}

Status SetString(int context, const char* key, const std::string& value) {
  if (::fsconfig(context, FSCONFIG_SET_STRING, key, value.c_str(), 0) == 0) return OkStatus();
  const int error = errno;
  return Status::FromErrno(error,
                           std::string("set EROFS ") + key + "=" + value + ContextLog(context));
}

struct Attempt {
  std::string source;
  std::string device;  // "" for none
  bool direct_io = false;
};

Result<UniqueFd> TryMount(const Attempt& attempt) {
  UniqueFd context(::fsopen("erofs", FSOPEN_CLOEXEC));
  if (!context.valid()) return ErrnoError("open an EROFS mount context");
  ESKER_RETURN_IF_ERROR(SetString(context.get(), "source", attempt.source));
  if (!attempt.device.empty()) {
    ESKER_RETURN_IF_ERROR(SetString(context.get(), "device", attempt.device));
  }
  if (attempt.direct_io &&
      ::fsconfig(context.get(), FSCONFIG_SET_FLAG, "directio", nullptr, 0) != 0) {
    (void)ContextLog(context.get());  // an older kernel: without it, then
  }
  if (::fsconfig(context.get(), FSCONFIG_SET_FLAG, "ro", nullptr, 0) != 0 ||
      ::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    const int error = errno;
    return Status::FromErrno(error, "mount EROFS " + attempt.source +
                                        (attempt.device.empty() ? "" : " with " + attempt.device) +
                                        ContextLog(context.get()));
  }
  UniqueFd mount(::fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV));
  if (!mount.valid()) return ErrnoError("make a mount of EROFS " + attempt.source);
  return mount;
}

// fsconfig takes values of at most 255 bytes; longer paths go through a descriptor.
struct NamedFile {
  std::string name;
  UniqueFd fd;
};
Result<NamedFile> NameForFsconfig(const std::string& path) {
  if (path.size() <= 255) return NamedFile{path, UniqueFd()};
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDONLY | O_CLOEXEC));
  std::string name = "/proc/self/fd/" + std::to_string(fd.get());
  return NamedFile{std::move(name), std::move(fd)};
}

// What tells that this kernel, or the file system the image lies on, cannot mount files: no
// file-backed EROFS (before 6.12), or files on an overlay or on FUSE passthrough.
bool NeedsLoop(const Status& status) { return status.error_number() == ENOTBLK; }

Result<LayerMount> MountWithLoop(const LayerMountSpec& spec) {
  LayerMount out;
  out.file_backed = false;
  ESKER_ASSIGN_OR_RETURN(LoopDevice metadata, LoopDevice::Attach(spec.metadata_path));
  Attempt attempt;
  attempt.source = metadata.path;
  out.loop[0] = std::move(metadata.fd);
  if (!spec.data_path.empty()) {
    ESKER_ASSIGN_OR_RETURN(LoopDevice data, LoopDevice::Attach(spec.data_path));
    attempt.device = data.path;
    out.loop[1] = std::move(data.fd);
  }
  ESKER_ASSIGN_OR_RETURN(out.mount, TryMount(attempt));
  return out;
}

Result<LayerMount> MountOnce(const LayerMountSpec& spec) {
  ESKER_ASSIGN_OR_RETURN(NamedFile metadata, NameForFsconfig(spec.metadata_path));
  Attempt attempt;
  attempt.source = metadata.name;
  NamedFile data;
  if (!spec.data_path.empty()) {
    ESKER_ASSIGN_OR_RETURN(data, NameForFsconfig(spec.data_path));
    attempt.device = data.name;
  }
  // EROFS keeps the pages; without this the file below keeps them a second time (and FUSE a third).
  attempt.direct_io = !spec.data_path.empty();
  Result<UniqueFd> mount = TryMount(attempt);
  if (!mount.ok() && attempt.direct_io && mount.status().error_number() == EINVAL) {
    attempt.direct_io = false;
    mount = TryMount(attempt);
  }
  if (mount.ok()) {
    LayerMount out;
    out.mount = std::move(*mount);
    return out;
  }
  if (!NeedsLoop(mount.status())) return std::move(mount).status();
  Result<LayerMount> looped = MountWithLoop(spec);
  if (!looped.ok()) {
    return std::move(looped).status().Wrap("after files could not be mounted directly (" +
                                           mount.status().message() + ")");
  }
  return looped;
}

}  // namespace

Result<LayerMount> MountLayer(const LayerMountSpec& spec) {
  Result<LayerMount> mount = MountOnce(spec);
  const bool gone = !mount.ok() && mount.status().error_number() == ENOENT;
  if (!gone || spec.served_path.empty() || PathExists(spec.data_path)) return mount;
  return MountOnce({spec.metadata_path, spec.served_path, ""});
}

}  // namespace esker
