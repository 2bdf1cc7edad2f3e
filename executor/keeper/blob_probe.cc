#include "blob_probe.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/log.h"
#include "child_process.h"

namespace esker::keeper {
namespace {

constexpr char kWell = 'w', kStuckMark = 's';

// In the child, which keeps nothing of the keeper's open but the pipe.
int AskForEver(const char* directory, int pipe) {
  constexpr int kPipe = 3;
  if (pipe != kPipe && dup2(pipe, kPipe) != kPipe) return 1;
  if (close_range(kPipe + 1, ~0U, 0) != 0) return 1;
  for (;;) {
    struct statfs status;
    char mark = kWell;
    if (statfs(directory, &status) != 0 && errno == EIO) mark = kStuckMark;
    if (write(kPipe, &mark, 1) != 1) return 0;
    timespec pause{BlobProbe::kIntervalNs / 1'000'000'000, 0};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

Status BlobProbe::Start(const std::string& directory, std::function<void(Finding)> found) {
  directory_ = directory;
  found_ = std::move(found);
  Fresh();
  ESKER_RETURN_IF_ERROR(StartChild());
  loop_.After(kIntervalNs, [this] { Look(); });
  return OkStatus();
}

Status BlobProbe::StartChild() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) return ErrnoError("make a pipe");
  UniqueFd read_end(fds[0]), write_end(fds[1]);
  ESKER_ASSIGN_OR_RETURN(
      Process child, ForkChild([&] { return AskForEver(directory_.c_str(), write_end.get()); }));
  ESKER_ASSIGN_OR_RETURN(child_, Process::Open(child.pid()));
  answers_ = std::move(read_end);
  ESKER_RETURN_IF_ERROR(loop_.Watch(answers_.get(), EPOLLIN, [this](uint32_t) { Heard(); }));
  return ReapWhenEnded(loop_, std::move(child), [this](int status) {
    if (answers_.valid()) loop_.Unwatch(answers_.get());
    answers_.reset();
    if (stopping_) return;
    LogWarning("blob-probe-ended", {{"wait_status", status}});
    loop_.After(kIntervalNs, [this] {
      Status started = stopping_ ? OkStatus() : StartChild();
      if (!started.ok()) LogError("blob-probe-not-started", {{"error", started.ToString()}});
    });
  });
}

void BlobProbe::Heard() {
  char marks[64];
  ssize_t n = read(answers_.get(), marks, sizeof(marks));
  if (n <= 0) {
    if (n == 0) loop_.Unwatch(answers_.get());  // it ended, and will be reaped
    return;
  }
  heard_ns_ = Clock::System().MonotonicNanos();
  if (marks[n - 1] == kStuckMark) Tell(Finding::kStuck);
}

void BlobProbe::Look() {
  if (stopping_) return;
  // What came while this process could not run counts. Without a child nothing is known.
  if (answers_.valid()) Heard();
  const int64_t now = Clock::System().MonotonicNanos();
  if (answers_.valid() && now - heard_ns_ > kDeadlineNs) Tell(Finding::kSilent);
  loop_.After(kIntervalNs, [this] { Look(); });
}

void BlobProbe::Tell(Finding finding) {
  if (std::exchange(told_, true)) return;
  found_(finding);
}

void BlobProbe::Fresh() {
  heard_ns_ = Clock::System().MonotonicNanos();
  told_ = false;
}

void BlobProbe::Stop() {
  stopping_ = true;
  if (!child_.valid()) return;
  Status killed = child_.Kill(SIGKILL);
  if (!killed.ok()) LogWarning("kill-blob-probe", {{"error", killed.ToString()}});
}

}  // namespace esker::keeper
