#include "blob_session.h"

#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>

#include "base/io.h"
#include "base/log.h"
#include "child_process.h"
#include "imagefs/blob_server.h"

namespace esker::keeper {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kFirstPause = 50 * kMillisecond;
constexpr int64_t kLongestPause = 5'000 * kMillisecond;
constexpr int64_t kStayed = 2'000 * kMillisecond;  // a server that lived this long was a good one
constexpr int kGraceMs = 5'000;

}  // namespace

Status BlobSession::Start(const KeeperOptions& options) {
  std::string run = options.data_directory + "/run";
  directory_ = run + "/blobs";
  std::string state = run + "/blobs.state";
  ESKER_RETURN_IF_ERROR(MakeDirectories(directory_));
  // A new session begins with an INIT of its own; that of a dead keeper's session must not be used.
  if (unlink(state.c_str()) != 0 && errno != ENOENT) return ErrnoError("remove " + state);
  ESKER_ASSIGN_OR_RETURN(fuse_, MountBlobFs(directory_));
  argv_ = {options.binary_directory + "/esker-imagefs",
           "--store",
           options.store_directory,
           "--cache",
           options.cache_directory,
           "--fuse-fd",
           "3",
           "--state",
           state};
  return StartOne();
}

Status BlobSession::StartOne() {
  ESKER_ASSIGN_OR_RETURN(Process child, StartServer(argv_, fuse_.get()));
  ESKER_ASSIGN_OR_RETURN(server_, Process::Open(child.pid()));
  started_ns_ = Clock::System().MonotonicNanos();
  LogInfo("blob-server-started", {{"pid", server_.pid()}});
  return ReapWhenEnded(loop_, std::move(child), [this](int status) { Ended(status); });
}

void BlobSession::Ended(int status) {
  server_ = Process();
  if (stopping_) return;
  int64_t lived = Clock::System().MonotonicNanos() - started_ns_;
  LogWarning("blob-server-ended", {{"wait_status", status}, {"lived_ms", lived / kMillisecond}});
  if (lived >= kStayed) pause_ns_ = 0;
  Retry(pause_ns_);
  pause_ns_ = std::min(kLongestPause, std::max(kFirstPause, pause_ns_ * 2));
}

void BlobSession::Retry(int64_t delay_ns) {
  auto start = [this] {
    if (stopping_ || server_.valid()) return;
    Status started = StartOne();
    if (started.ok()) return;
    LogError("blob-server-not-started", {{"error", started.ToString()}});
    Retry(kLongestPause);
  };
  if (delay_ns == 0) return start();
  loop_.After(delay_ns, start);
}

Status BlobSession::Replace() {
  if (!server_.valid()) return UnavailableError("there is no blob server; one is being started");
  ESKER_RETURN_IF_ERROR(server_.Kill(SIGTERM));
  ESKER_ASSIGN_OR_RETURN(Process old, Process::Open(server_.pid()));
  auto owned = std::make_shared<Process>(std::move(old));
  pause_ns_ = 0;
  loop_.After(kGraceMs * kMillisecond, [owned] {
    Status killed = owned->Kill(SIGKILL);
    if (!killed.ok()) LogWarning("kill-blob-server", {{"error", killed.ToString()}});
  });
  return OkStatus();
}

Status BlobSession::Stop() {
  stopping_ = true;
  if (fuse_.valid() && umount2(directory_.c_str(), MNT_DETACH) != 0) {
    return ErrnoError("unmount " + directory_);
  }
  fuse_.reset();
  if (!server_.valid()) return OkStatus();
  ESKER_RETURN_IF_ERROR(server_.Kill(SIGTERM));
  if (server_.WaitExit(kGraceMs).ok()) return OkStatus();
  return server_.Kill(SIGKILL);
}

}  // namespace esker::keeper
