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
constexpr int64_t kReplaceGrace = 1'000 * kMillisecond;  // readers wait for it
constexpr int64_t kDeathGrace = 2'000 * kMillisecond;    // from SIGKILL to the end
// Servers that hang in the store are not replaced any more beyond so many that cannot die: their
// successors would only hang too.
constexpr uint32_t kMostAbandoned = 3;

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
           state,
           "--control",
           run + "/imagefs.sock"};
  ESKER_RETURN_IF_ERROR(StartOne());
  return probe_.Start(directory_, [this](BlobProbe::Finding finding) { OnFinding(finding); });
}

Status BlobSession::StartOne() {
  ESKER_ASSIGN_OR_RETURN(Process child, StartServer(argv_, fuse_.get()));
  ESKER_ASSIGN_OR_RETURN(server_, Process::Open(child.pid()));
  started_ns_ = Clock::System().MonotonicNanos();
  probe_.Fresh();
  LogInfo("blob-server-started", {{"pid", server_.pid()}, {"program", argv_[0]}});
  return ReapWhenEnded(loop_, std::move(child),
                       [this, number = ++number_](int status) { Ended(number, status); });
}

void BlobSession::Ended(uint64_t number, int status) {
  if (number != number_ || !server_.valid()) {  // it has been replaced already
    --abandoned_;
    return;
  }
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
  loop_.After(kReplaceGrace, [this, owned, number = number_] {
    Status killed = owned->Kill(SIGKILL);
    if (!killed.ok()) LogWarning("kill-blob-server", {{"error", killed.ToString()}});
    loop_.After(kDeathGrace, [this, number] { Abandon(number); });
  });
  return OkStatus();
}

Status BlobSession::Upgrade(const std::string& program) {
  if (program.empty() || program[0] != '/') {
    return InvalidArgumentError("the blob server's program needs an absolute path");
  }
  if (access(program.c_str(), X_OK) != 0)
    return ErrnoError("upgrade the blob server to " + program);
  argv_[0] = program;
  // While there is none, the next start takes the new program.
  return server_.valid() ? Replace() : OkStatus();
}

void BlobSession::OnFinding(BlobProbe::Finding finding) {
  if (stopping_ || !server_.valid()) return;
  const bool silent = finding == BlobProbe::Finding::kSilent;
  if (!silent && abandoned_ >= kMostAbandoned) {
    LogError("blob-server-stuck",
             {{"pid", server_.pid()}, {"action", "none: earlier ones still wait for the store"}});
    return;
  }
  LogError("blob-server-hangs", {{"pid", server_.pid()},
                                 {"why", silent ? "it does not answer" : "it waits for the store"},
                                 {"action", "kill and replace"}});
  // One that still takes signals gives up the cache's locks, which its hanging threads would keep.
  if (!silent && Replace().ok()) return;
  Status killed = server_.Kill(SIGKILL);
  if (!killed.ok()) LogWarning("kill-blob-server", {{"error", killed.ToString()}});
  loop_.After(kDeathGrace, [this, number = number_] { Abandon(number); });
}

// A process that waits in the kernel (a store that hangs) cannot die before that wait ends. It has
// had SIGKILL, so no instruction of it will run again: the next server may start beside it.
void BlobSession::Abandon(uint64_t number) {
  if (stopping_ || number != number_ || !server_.valid()) return;
  LogWarning("blob-server-abandoned", {{"pid", server_.pid()}});
  server_ = Process();
  ++abandoned_;
  Retry(0);
}

Status BlobSession::Stop() {
  stopping_ = true;
  probe_.Stop();
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
