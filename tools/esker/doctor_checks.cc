#include "doctor_checks.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/io.h"
#include "base/process.h"
#include "base/temp_dir.h"
#include "executor/upper_store.h"

namespace esker::cli {
namespace {

Finding Works(std::string detail) { return {"", Verdict::kWorks, std::move(detail)}; }
Finding FallsBack(std::string detail) { return {"", Verdict::kFallsBack, std::move(detail)}; }
Finding Missing(const Status& status) { return {"", Verdict::kMissing, status.message()}; }
Finding Missing(std::string detail) { return {"", Verdict::kMissing, std::move(detail)}; }

Finding CheckRoot() {
  if (::geteuid() == 0) return Works("running as root");
  return Missing("not root: esker serve cannot run; most checks below fail for that reason alone");
}

Finding CheckUpper(const std::string& directory) {
  Result<std::unique_ptr<UpperStore>> upper =
      UpperStore::Open({.directory = directory + "/uppers", .pool_bytes = 1ull << 30});
  if (!upper.ok()) return Missing(upper.status());
  std::string kind = (*upper)->kind();
  bool limits = (*upper)->enforces_limit();
  Status closed = (*upper)->Close();
  upper->reset();
  Status destroyed = UpperStore::Destroy(directory + "/uppers");
  if (!closed.ok()) return Missing(closed);
  if (!destroyed.ok()) return Missing(destroyed);
  if (limits) return Works("hard disk limits: " + kind);
  return FallsBack("no hard disk limit (" + kind +
                   "): disk_mb answers UNIMPLEMENTED, snapshots copy");
}

Finding CheckDescriptors() {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  std::string detail = "up to " + std::to_string(limit.rlim_max) + " descriptors a process";
  // About 4 descriptors an idle sandbox in any process.
  if (limit.rlim_max >= 16'000) return Works(detail);
  return FallsBack(detail + ": about " + std::to_string(limit.rlim_max / 4) + " sandboxes fit");
}

Finding CheckSpace(const std::string& data) {
  struct statvfs fs = {};
  if (::statvfs(data.c_str(), &fs) != 0) return Missing(ErrnoError("measure " + data));
  uint64_t gib = static_cast<uint64_t>(fs.f_bavail) * fs.f_frsize >> 30;
  std::string detail = std::to_string(gib) + " GiB free at " + data;
  return gib >= 10 ? Works(detail) : FallsBack(detail + ": images and sandboxes will soon fill it");
}

Result<int64_t> MedianFsyncMicros(const std::string& directory) {
  ESKER_ASSIGN_OR_RETURN(TempDir dir, TempDir::Create(directory));
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(dir.path() + "/probe", O_WRONLY | O_CREAT));
  std::vector<int64_t> micros;
  std::string block(4096, 'e');
  for (int i = 0; i < 21; ++i) {
    ESKER_RETURN_IF_ERROR(PWriteFull(fd.get(), block.data(), block.size(), uint64_t(i) * 4096));
    int64_t start = Clock::System().MonotonicNanos();
    if (::fsync(fd.get()) != 0) return ErrnoError("fsync in " + directory);
    micros.push_back((Clock::System().MonotonicNanos() - start) / 1000);
  }
  fd.reset();
  ESKER_RETURN_IF_ERROR(dir.Remove());
  std::nth_element(micros.begin(), micros.begin() + 10, micros.end());
  return micros[10];
}

Finding CheckFsync(const std::string& store) {
  Result<int64_t> micros = MedianFsyncMicros(store);
  if (!micros.ok()) return Missing(micros.status());
  std::string detail = "fsync takes " + std::to_string(*micros) + " us at " + store;
  // Even a fast flash device needs tens of microseconds to make a block durable.
  if (*micros >= 20) return Works(detail);
  return FallsBack(detail +
                   ": too fast to be real, so what is acknowledged may not survive a power "
                   "loss (a memory file system, or a device that lies)");
}

Finding CheckTool(const char* program, const char* package, const char* why) {
  Result<CommandOutput> output = RunCommand({"sh", "-c", std::string("command -v ") + program});
  if (output.ok() && output->exit_code == 0) return Works(program);
  return FallsBack(std::string(program) + " is not installed (package " + package + "): " + why);
}

std::string NearestExisting(std::string path) {
  while (!PathExists(path) && path.size() > 1) {
    size_t slash = path.rfind('/');
    path = slash == 0 ? "/" : path.substr(0, slash);
  }
  return path;
}

}  // namespace

std::vector<Finding> RunDoctorChecks(const std::string& data, const std::string& store) {
  std::string data_at = NearestExisting(data), store_at = NearestExisting(store);
  std::vector<Finding> findings;
  auto add = [&](const char* name, Finding finding) {
    finding.name = name;
    findings.push_back(std::move(finding));
  };
  add("root", CheckRoot());
  Result<TempDir> temp = TempDir::Create(data_at);
  if (!temp.ok()) {
    add("data directory", Missing(temp.status()));
    return findings;
  }
  HostProbe probe{temp->path() + "/probe", "esker-doctor-" + std::to_string(::getpid())};
  for (Finding& finding : ProbeHost(probe)) findings.push_back(std::move(finding));
  add("disk limits", CheckUpper(temp->path()));
  add("descriptors", CheckDescriptors());
  add("free space", CheckSpace(data_at));
  add("durable store", CheckFsync(store_at));
  add("mkfs.btrfs", CheckTool("mkfs.btrfs", "btrfs-progs", "no hard disk limits"));
  add("bsdtar", CheckTool("bsdtar", "libarchive-tools", "no `image push dir:`"));
  if (Status removed = temp->Remove(); !removed.ok()) add("clean-up", Missing(removed));
  return findings;
}

}  // namespace esker::cli
