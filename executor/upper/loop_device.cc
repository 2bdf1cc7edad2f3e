#include "loop_device.h"

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <cerrno>
#include <vector>

#include "base/io.h"

namespace esker {
namespace {

constexpr int kAttempts = 64;
constexpr uint32_t kBlockSize = 4096;

}  // namespace

Result<LoopDevice> AttachLoop(int backing) {
  Result<UniqueFd> control = OpenFile("/dev/loop-control", O_RDWR);
  if (!control.ok()) {
    return std::move(control).status().WithCode(Code::kUnimplemented).Wrap("loop devices");
  }
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    int number = ioctl(control->get(), LOOP_CTL_GET_FREE);
    if (number < 0) return ErrnoError("find a free loop device");
    std::string path = "/dev/loop" + std::to_string(number);
    ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDWR));
    loop_config config = {};
    config.fd = static_cast<uint32_t>(backing);
    config.block_size = kBlockSize;
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
    if (ioctl(fd.get(), LOOP_CONFIGURE, &config) == 0) return LoopDevice{path, std::move(fd)};
    // EBUSY: another process took the same free device first.
    if (errno != EBUSY) return ErrnoError("attach the pool to " + path);
  }
  return UnavailableError("attach the pool: other processes took " + std::to_string(kAttempts) +
                          " free loop devices first");
}

Result<std::optional<LoopDevice>> FindLoop(int backing) {
  struct stat want = {};
  if (fstat(backing, &want) != 0) return ErrnoError("stat the pool file");
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory("/sys/block"));
  for (const std::string& name : names) {
    if (!name.starts_with("loop") || !PathExists("/sys/block/" + name + "/loop/backing_file")) {
      continue;
    }
    Result<UniqueFd> fd = OpenFile("/dev/" + name, O_RDWR);
    if (!fd.ok()) continue;  // cleared since, or another's read-only one
    loop_info64 info = {};
    if (ioctl(fd->get(), LOOP_GET_STATUS64, &info) != 0) continue;  // cleared since
    if (info.lo_device == want.st_dev && info.lo_inode == want.st_ino) {
      return std::optional<LoopDevice>(LoopDevice{"/dev/" + name, std::move(fd).value()});
    }
  }
  return std::optional<LoopDevice>();
}

Status RefreshLoopSize(int loop_fd) {
  if (ioctl(loop_fd, LOOP_SET_CAPACITY, 0) != 0) return ErrnoError("LOOP_SET_CAPACITY");
  return OkStatus();
}

}  // namespace esker
