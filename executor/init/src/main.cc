// esker-init: PID 1 of a sandbox. See executor/init/README.md for what it is started with.
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "server.h"

namespace esker {
namespace {

constexpr int kListenFd = 3, kCgroupFd = 4, kFilterFd = 5;
constexpr int kBadStart = 78;  // EX_CONFIG
constexpr size_t kMaxInstructions = 4096;
// Three pipe ends and a watch for each command, and some for all else.
constexpr uint64_t kFdsPerCommand = 4, kOtherFds = 256;

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

// Later code counts on new descriptors never being 0, 1 or 2.
bool OccupyStandardStreams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (IsOpen(fd)) continue;
    int opened = ::open("/dev/null", O_RDWR);
    if (opened < 0) opened = ::dup(kListenFd);
    if (opened != fd) return false;
  }
  return true;
}

Result<SystemCallFilter> MapFilter() {
  struct stat st;
  if (::fstat(kFilterFd, &st) != 0) {
    return FailedPreconditionError("descriptor 5 (the system call filter) is not open");
  }
  constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK;
  int seals = ::fcntl(kFilterFd, F_GET_SEALS);
  auto size = static_cast<size_t>(st.st_size);
  if (seals < 0 || (seals & kSeals) != kSeals || size == 0 || size % sizeof(sock_filter) != 0 ||
      size > kMaxInstructions * sizeof(sock_filter)) {
    return FailedPreconditionError("descriptor 5 is not a sealed system call filter");
  }
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, kFilterFd, 0);
  if (memory == MAP_FAILED) return ErrnoError("map the system call filter");
  return SystemCallFilter{static_cast<const sock_filter*>(memory),
                          static_cast<uint16_t>(size / sizeof(sock_filter))};
}

Status CheckCgroup() {
  struct statfs fs;
  if (::fstatfs(kCgroupFd, &fs) != 0 || fs.f_type != CGROUP2_SUPER_MAGIC) {
    return FailedPreconditionError(
        "descriptor 4 is not the sandbox's cgroup2 directory; commands could not be killed whole");
  }
  return OkStatus();
}

// Commands keep the limit that init was given; init itself takes all it may have.
uint64_t RaiseFileLimit(rlimit& original) {
  if (::getrlimit(RLIMIT_NOFILE, &original) != 0) return 0;
  rlimit raised = {original.rlim_max, original.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &raised);
  return original.rlim_max;
}

Status Main(bool without_filter) {
  if (!IsOpen(kListenFd)) {
    return FailedPreconditionError("descriptor 3 (the listening socket) is not open");
  }
  if (!OccupyStandardStreams()) return ErrnoError("open standard streams");
  ESKER_RETURN_IF_ERROR(CheckCgroup());
  LaunchContext context;
  context.cgroup_fd = kCgroupFd;
  if (!without_filter) {
    ESKER_ASSIGN_OR_RETURN(context.filter, MapFilter());
  }
  // The filter is mapped; whatever else was inherited is nobody's business inside.
  ::close_range(kFilterFd, ~0U, 0);
  for (int fd : {kListenFd, kCgroupFd}) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  uint64_t files = RaiseFileLimit(context.file_limit);
  uint64_t commands =
      files > kOtherFds + kFdsPerCommand ? (files - kOtherFds) / kFdsPerCommand : 16;
  Server server(kListenFd, context, static_cast<size_t>(std::min<uint64_t>(commands, 16'384)));
  return server.Run();
}

}  // namespace
}  // namespace esker

int main(int argc, char** argv) {
  // For tests of init by itself; the keeper never passes it.
  bool without_filter = argc == 2 && std::string_view(argv[1]) == "--without-filter";
  std::string text = "esker-init: " + esker::Main(without_filter).message() + "\n";
  (void)!::write(2, text.data(), text.size());
  return esker::kBadStart;
}
