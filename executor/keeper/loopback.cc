#include "loopback.h"

#include <fcntl.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace esker::keeper {
namespace {

// /proc/sys/net shows the namespace of whoever opens it, not of whoever mounted /proc.
bool WriteSetting(int proc, const char* path, const char* value) {
  int fd = openat(proc, path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool written = write(fd, value, strlen(value)) > 0;
  int error = errno;
  close(fd);
  errno = error;
  return written;
}

}  // namespace

int OpenOwnProc() {
  int fs = fsopen("proc", FSOPEN_CLOEXEC);
  if (fs < 0) return -1;
  int fd = -1;
  if (fsconfig(fs, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0) {
    fd = fsmount(fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
  }
  int error = errno;
  close(fs);
  errno = error;
  return fd;
}

const char* SetUpLoopback(int proc) {
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "socket";
  ifreq request = {};
  memcpy(request.ifr_name, "lo", 3);
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  int rc = ioctl(fd, SIOCSIFFLAGS, &request);
  int error = errno;
  close(fd);
  errno = error;
  if (rc != 0) return "bring up lo";
  static constexpr char kPorts[] = "sys/net/ipv4/ip_unprivileged_port_start";
  static constexpr char kPing[] = "sys/net/ipv4/ping_group_range";
  if (!WriteSetting(proc, kPorts, "0")) return kPorts;
  if (!WriteSetting(proc, kPing, "0 4294967294")) return kPing;
  return nullptr;
}

}  // namespace esker::keeper
