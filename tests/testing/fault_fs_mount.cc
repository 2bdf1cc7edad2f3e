#include "testing/fault_fs_mount.h"

#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/io.h"
#include "testing/fault_rules.h"

namespace esker::testing {
namespace {

bool IsMountPoint(const std::string& path) {
  struct stat inside {
  }, outside{};
  return ::stat(path.c_str(), &inside) == 0 && ::stat((path + "/..").c_str(), &outside) == 0 &&
         inside.st_dev != outside.st_dev;
}

}  // namespace

Result<std::unique_ptr<FaultFsMount>> FaultFsMount::Start(const std::string& backing,
                                                          const std::string& mountpoint,
                                                          const std::string& rules_file) {
  ESKER_RETURN_IF_ERROR(MakeDirectories(mountpoint));
  std::unique_ptr<FaultFsMount> mount(new FaultFsMount());
  mount->mountpoint_ = mountpoint;
  mount->rules_file_ = rules_file;
  ESKER_RETURN_IF_ERROR(mount->SetRules(""));
  SpawnOptions options;
  options.argv = {ESKER_FAULT_FS, "--backing", backing, "--rules", rules_file, mountpoint};
  ESKER_ASSIGN_OR_RETURN(mount->process_, Process::Spawn(options));
  while (!IsMountPoint(mountpoint)) {
    if (mount->process_.WaitExit(5).ok()) {
      return FailedPreconditionError("esker-fault-fs ended before " + mountpoint + " was mounted");
    }
  }
  return mount;
}

Status FaultFsMount::SetRules(const std::string& rules) {
  ESKER_RETURN_IF_ERROR(ParseFaultRules(rules).status());
  return ReplaceFileDurably(rules_file_, rules);
}

Status FaultFsMount::Stop() {
  if (!process_.valid()) return OkStatus();
  ESKER_RETURN_IF_ERROR(SetRules(""));
  // Those that hung may need a moment to let go of their files.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (::umount2(mountpoint_.c_str(), 0) != 0) {
    if (errno != EBUSY || std::chrono::steady_clock::now() > deadline) {
      return ErrnoError("unmount " + mountpoint_);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ESKER_RETURN_IF_ERROR(process_.WaitExit(10'000));
  Status reaped = process_.Reap().status();
  process_ = Process();
  return reaped;
}

FaultFsMount::~FaultFsMount() {
  if (Stop().ok() || !process_.valid()) return;
  (void)::umount2(mountpoint_.c_str(), MNT_DETACH);
  (void)process_.Kill(SIGKILL);
  if (process_.WaitExit(10'000).ok()) (void)process_.Reap();
}

}  // namespace esker::testing
