#include "loop_device.h"

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/io.h"

namespace esker {
namespace {

// Another process may take the device that was free a moment ago.
constexpr int kAttempts = 64;

int Configure(int loop, int backing, const std::string& name, uint32_t flags) {
  loop_config config{};
  config.fd = static_cast<uint32_t>(backing);
  config.block_size = 4096;
  config.info.lo_flags = LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR | flags;
  // For people who look at losetup; the kernel does not use it.
  std::memcpy(config.info.lo_file_name, name.data(),
              std::min<size_t>(name.size(), LO_NAME_SIZE - 1));
  return ::ioctl(loop, LOOP_CONFIGURE, &config) == 0 ? 0 : errno;
}

}  // namespace

Result<LoopDevice> LoopDevice::Attach(const std::string& file) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd backing, OpenFile(file, O_RDONLY | O_CLOEXEC));
  ESKER_ASSIGN_OR_RETURN(UniqueFd control, OpenFile("/dev/loop-control", O_RDWR | O_CLOEXEC));
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) return ErrnoError("find a free loop device");
    LoopDevice device;
    device.path = "/dev/loop" + std::to_string(number);
    ESKER_ASSIGN_OR_RETURN(device.fd, OpenFile(device.path, O_RDONLY | O_CLOEXEC));
    int error = Configure(device.fd.get(), backing.get(), file, LO_FLAGS_DIRECT_IO);
    if (error == EINVAL) error = Configure(device.fd.get(), backing.get(), file, 0);
    if (error == 0) return device;
    if (error != EBUSY) return Status::FromErrno(error, "attach " + file + " to " + device.path);
  }
  return ResourceExhaustedError("attach " + file + ": every free loop device was taken by others");
}

}  // namespace esker
