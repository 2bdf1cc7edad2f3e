#include "unified.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/io.h"
#include "controllers.h"

namespace esker {
namespace {

// Sandboxes may nest cgroups inside theirs; deeper than this is refused, not recursed into.
constexpr int kMaxDepth = 64;
constexpr int64_t kShortestStepNs = 200'000, kLongestStepNs = 10'000'000;

Status RemoveBelow(int dirfd, const std::string& name, int depth) {
  if (::unlinkat(dirfd, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return OkStatus();
  // EBUSY means processes or children; only children can be helped.
  if (errno != EBUSY || depth == 0) return ErrnoError("remove cgroup " + name);
  Result<UniqueFd> child = OpenFileAt(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!child.ok()) {
    return child.status().code() == Code::kNotFound ? OkStatus() : child.status();
  }
  ESKER_ASSIGN_OR_RETURN(std::vector<std::string> below, ListCgroups(child->get()));
  for (const std::string& each : below) {
    ESKER_RETURN_IF_ERROR(RemoveBelow(child->get(), each, depth - 1).Wrap(name));
  }
  if (::unlinkat(dirfd, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return OkStatus();
  return ErrnoError("remove cgroup " + name);
}

}  // namespace

Result<std::vector<std::string>> ListCgroups(int dirfd) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFileAt(dirfd, ".", O_RDONLY | O_DIRECTORY));
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::fdopendir(fd.get()), ::closedir);
  if (dir == nullptr) return ErrnoError("read a cgroup directory");
  (void)fd.release();  // closedir closes it
  std::vector<std::string> out;
  for (;;) {
    errno = 0;
    dirent* entry = ::readdir(dir.get());
    if (entry == nullptr) break;
    if (entry->d_type == DT_DIR && entry->d_name[0] != '.') out.emplace_back(entry->d_name);
  }
  if (errno != 0) return ErrnoError("read a cgroup directory");
  return out;
}

Status WaitCgroupEvent(int dirfd, const char* key, uint64_t value, int timeout_ms) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFileAt(dirfd, "cgroup.events", O_RDONLY));
  int64_t deadline = Clock::System().MonotonicNanos() + int64_t{timeout_ms} * 1'000'000;
  int64_t step_ns = kShortestStepNs;
  for (;;) {
    char text[256];
    ssize_t size = ::pread(fd.get(), text, sizeof(text), 0);
    if (size < 0) return ErrnoError("read cgroup.events");
    if (FindKey({text, static_cast<size_t>(size)}, key) == value) return OkStatus();
    int64_t left = deadline - Clock::System().MonotonicNanos();
    if (left <= 0) {
      return DeadlineExceededError("cgroup did not become \"" + std::string(key) + " " +
                                   std::to_string(value) + "\" within " +
                                   std::to_string(timeout_ms) + " ms");
    }
    // The read above armed the notification, so a change since then is not missed. But the kernel
    // holds back a second one within 10 ms (CGROUP_FILE_NOTIFY_MIN_INTV), and most changes waited
    // for here come sooner, so it is looked at meanwhile.
    timespec wait = {0, static_cast<long>(std::min(left, step_ns))};
    step_ns = std::min(2 * step_ns, kLongestStepNs);
    pollfd p = {fd.get(), POLLPRI, 0};
    if (::ppoll(&p, 1, &wait, nullptr) < 0 && errno != EINTR) {
      return ErrnoError("poll cgroup.events");
    }
  }
}

Status FreezeCgroup(int dirfd, int timeout_ms) {
  ESKER_RETURN_IF_ERROR(WriteStringToFileAt(dirfd, "cgroup.freeze", "1"));
  Status status = WaitCgroupEvent(dirfd, "frozen", 1, timeout_ms);
  if (status.ok()) return status;
  // Half frozen is the worst of both; the caller hears why it did not work.
  Status thaw = ThawCgroup(dirfd);
  return thaw.ok() ? status : std::move(status).Wrap("freeze (and thaw failed)");
}

Status ThawCgroup(int dirfd) { return WriteStringToFileAt(dirfd, "cgroup.freeze", "0"); }

Status KillCgroup(int dirfd, int timeout_ms, int last) {
  ESKER_RETURN_IF_ERROR(WriteStringToFileAt(dirfd, "cgroup.kill", "1"));
  if (last >= 0) {
    pollfd p = {last, POLLIN, 0};
    // Whatever comes of it, the cgroup has the last word.
    if (::poll(&p, 1, timeout_ms) < 0 && errno != EINTR) return ErrnoError("poll a pidfd");
  }
  return WaitCgroupEvent(dirfd, "populated", 0, timeout_ms);
}

Status RemoveCgroupTree(int dirfd, const std::string& name) {
  return RemoveBelow(dirfd, name, kMaxDepth);
}

}  // namespace esker
