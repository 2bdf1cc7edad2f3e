#include "probing.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/io.h"
#include "base/scope_guard.h"
#include "imagefs/erofs.h"

namespace esker::features {
namespace {

constexpr char kCgroup[] = "probe";
constexpr int kEndTimeoutMs = 5000;

// A user namespace that maps its root to 100000. It lives as long as its descriptor.
Result<UniqueFd> MakeUserNamespace() {
  int hold[2];
  if (pipe2(hold, O_CLOEXEC) != 0) return ErrnoError("make a pipe");
  UniqueFd read_end(hold[0]), write_end(hold[1]);
  clone_args args = {};
  args.flags = CLONE_NEWUSER;
  args.exit_signal = SIGCHLD;
  pid_t pid = static_cast<pid_t>(syscall(SYS_clone3, &args, sizeof(args)));
  if (pid < 0) return ErrnoError("clone3 into a new user namespace");
  if (pid == 0) {
    close(hold[1]);
    char byte;
    ssize_t ignored = read(hold[0], &byte, 1);
    (void)ignored;
    _exit(0);
  }
  ScopeGuard reap([&] {
    write_end.reset();
    waitpid(pid, nullptr, 0);
  });
  std::string proc = "/proc/" + std::to_string(pid);
  ESKER_RETURN_IF_ERROR(WriteStringToFile(proc + "/uid_map", "0 100000 65536"));
  ESKER_RETURN_IF_ERROR(WriteStringToFile(proc + "/gid_map", "0 100000 65536"));
  return OpenFile(proc + "/ns/user", O_RDONLY);
}

Result<LayerMount> MountLayerOf(const std::string& directory) {
  ESKER_ASSIGN_OR_RETURN(std::string image, erofs::WriteMetadata(erofs::Tree(), {}));
  std::string path = directory + "/layer";
  ESKER_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(path, O_WRONLY | O_CREAT | O_EXCL));
  ESKER_RETURN_IF_ERROR(WriteFull(file.get(), image.data(), image.size()));
  file.reset();
  return MountLayer({.metadata_path = path, .data_path = ""});
}

}  // namespace

Status Probing::Begin() {
  ESKER_RETURN_IF_ERROR(RemoveTree(probe_.directory));
  return MakeDirectories(probe_.directory + "/fuse");
}

Status Probing::End() {
  if (layer_ && layer_->ok()) layer_.reset();
  Status cgroups = RemoveCgroups();
  Status directory = RemoveTree(probe_.directory);
  return cgroups.ok() ? directory : cgroups;
}

Status Probing::RemoveCgroups() {
  if (cgroups_ == nullptr) return OkStatus();
  Status killed = cgroups_->KillAll(kCgroup, kEndTimeoutMs);
  Status removed = cgroups_->Remove(kCgroup);
  Status closed = cgroups_->Close();
  cgroups_.reset();
  return !removed.ok() ? removed : closed;
}

Status Probing::OpenCgroups() {
  ESKER_ASSIGN_OR_RETURN(cgroups_, CgroupRoot::Open(probe_.cgroup));
  return cgroups_->Create(kCgroup, {.memory_bytes = 256u << 20, .pids = 16, .cpus = 1}, 0, 0);
}

Result<CgroupRoot*> Probing::Cgroups() {
  if (!cgroups_tried_) cgroups_opened_ = OpenCgroups();
  cgroups_tried_ = true;
  ESKER_RETURN_IF_ERROR(cgroups_opened_);
  return cgroups_.get();
}

const Result<UniqueFd>& Probing::UserNamespace() {
  if (!user_namespace_) user_namespace_ = MakeUserNamespace();
  return *user_namespace_;
}

const Result<LayerMount>& Probing::Layer() {
  if (!layer_) layer_ = MountLayerOf(probe_.directory);
  return *layer_;
}

const Rehearsal& Probing::Rehearsed() {
  if (rehearsal_) return *rehearsal_;
  RehearsalPlan plan;
  plan.fuse_directory = probe_.directory + "/fuse";
  if (UserNamespace().ok()) plan.user_ns = UserNamespace()->get();
  Result<CgroupEntryFds> entry = CgroupEntryFds{};
  if (Cgroups().ok()) entry = cgroups_->OpenEntry(kCgroup);
  if (entry.ok()) {
    plan.unified_cgroup = entry->unified.get();
    for (const UniqueFd& tasks : entry->tasks) plan.v1_tasks.push_back(tasks.get());
  }
  rehearsal_ = Rehearse(plan);
  if (!entry.ok()) {
    rehearsal_->steps[static_cast<size_t>(Step::kCgroups)] = std::move(entry).status();
  }
  return *rehearsal_;
}

}  // namespace esker::features
