#include "probing.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/io.h"
#include "base/user_namespace.h"
#include "imagefs/erofs.h"

namespace esker::features {
namespace {

constexpr char kCgroup[] = "probe";
constexpr int kEndTimeoutMs = 5000;

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
  if (!user_namespace_) user_namespace_ = MakeUserNamespace(100000, 65536);
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
