#include "doctor_checks.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "base/clock.h"
#include "base/id.h"
#include "base/io.h"
#include "base/process.h"
#include "base/temp_dir.h"
#include "executor/cgroup.h"
#include "executor/upper_store.h"
#include "imagefs/blob_server.h"
#include "imagefs/erofs.h"
#include "imagefs/layer_mount.h"

namespace esker::cli {
namespace {

Finding Works(std::string detail) { return {"", Verdict::kWorks, std::move(detail)}; }
Finding FallsBack(std::string detail) { return {"", Verdict::kFallsBack, std::move(detail)}; }
Finding Missing(const Status& status) { return {"", Verdict::kMissing, status.message()}; }
Finding Missing(std::string detail) { return {"", Verdict::kMissing, std::move(detail)}; }

// Runs `work` in a child with a mount namespace of its own; 0 = done, else an errno.
int InMountNamespace(const std::function<int()>& work) {
  pid_t pid = ::fork();
  if (pid < 0) return errno;
  if (pid == 0) {
    if (::unshare(CLONE_NEWNS) != 0) ::_exit(errno);
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) ::_exit(errno);
    ::_exit(work());
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
}

Finding CheckRoot() {
  if (::geteuid() == 0) return Works("running as root");
  return Missing("not root: esker serve cannot run; most checks below fail for that reason alone");
}

Finding CheckKernel() {
  utsname name = {};
  ::uname(&name);
  int major = 0, minor = 0;
  std::sscanf(name.release, "%d.%d", &major, &minor);
  std::string detail = std::string("Linux ") + name.release;
  if (major > 6 || (major == 6 && minor >= 15)) return Works(detail);
  return Missing(detail + ": the keeper builds roots from detached mounts, which needs Linux 6.15");
}

Finding CheckErofs(const std::string& directory) {
  erofs::Tree tree;
  Result<std::string> image = erofs::WriteMetadata(tree, {});
  if (!image.ok()) return Missing(image.status());
  std::string path = directory + "/probe.erofs";
  if (Status s = ReplaceFileDurably(path, *image); !s.ok()) return Missing(s);
  Result<LayerMount> mount = MountLayer({.metadata_path = path, .data_path = ""});
  if (!mount.ok()) return Missing(mount.status());
  if (mount->file_backed) return Works("EROFS mounts a file directly");
  return FallsBack(
      "EROFS needs a loop device per layer (file-backed mounts came with Linux 6.12, "
      "and need a file that is not on overlayfs): slower mounts, more memory");
}

Finding CheckFuse(const std::string& directory) {
  std::string at = directory + "/fuse";
  if (Status s = MakeDirectories(at); !s.ok()) return Missing(s);
  int error = InMountNamespace([&] {
    Result<UniqueFd> fd = MountBlobFs(at);
    return fd.ok() ? 0 : std::max(1, fd.status().error_number());
  });
  if (error == 0) return Works("a FUSE file system can be mounted");
  return Missing(Status::FromErrno(error, "mount a FUSE file system"));
}

Result<UniqueFd> MakeOverlay(const std::string& directory, bool by_descriptor) {
  for (const char* name : {"/lower1", "/lower2", "/upper", "/work"}) {
    ESKER_RETURN_IF_ERROR(MakeDirectories(directory + name));
  }
  UniqueFd fs(static_cast<int>(::syscall(SYS_fsopen, "overlay", FSOPEN_CLOEXEC)));
  if (!fs.valid()) return ErrnoError("open the overlay file system");
  for (const char* name : {"/lower1", "/lower2"}) {
    int rc;
    if (by_descriptor) {
      ESKER_ASSIGN_OR_RETURN(UniqueFd layer, OpenFile(directory + name, O_PATH | O_DIRECTORY));
      rc = static_cast<int>(
          ::syscall(SYS_fsconfig, fs.get(), FSCONFIG_SET_FD, "lowerdir+", nullptr, layer.get()));
    } else {
      rc = static_cast<int>(::syscall(SYS_fsconfig, fs.get(), FSCONFIG_SET_STRING, "lowerdir+",
                                      (directory + name).c_str(), 0));
    }
    if (rc != 0) return ErrnoError("add an overlay layer");
  }
  for (auto& [key, name] : {std::pair{"upperdir", "/upper"}, std::pair{"workdir", "/work"}}) {
    if (::syscall(SYS_fsconfig, fs.get(), FSCONFIG_SET_STRING, key, (directory + name).c_str(),
                  0)) {
      return ErrnoError("set the overlay's upper");
    }
  }
  if (::syscall(SYS_fsconfig, fs.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    return ErrnoError("make an overlay");
  }
  UniqueFd mount(static_cast<int>(::syscall(SYS_fsmount, fs.get(), FSMOUNT_CLOEXEC, 0)));
  if (!mount.valid()) return ErrnoError("mount an overlay");
  return mount;
}

Finding CheckOverlay(const std::string& directory) {
  if (MakeOverlay(directory, true).ok()) return Works("overlayfs takes layers by descriptor");
  Result<UniqueFd> by_path = MakeOverlay(directory, false);
  if (!by_path.ok()) return Missing(by_path.status());
  return FallsBack(
      "overlayfs takes layers by path only (descriptors came with Linux 6.13): slower "
      "creation");
}

// A user namespace that maps its root to 100000, alive as long as the child is.
Result<UniqueFd> MakeUserNamespace() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoError("pipe");
  UniqueFd read_end(fds[0]), write_end(fds[1]);
  pid_t pid = static_cast<pid_t>(
      ::syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (pid < 0) return ErrnoError("make a user namespace");
  if (pid == 0) {
    write_end.reset();
    char byte;
    ssize_t ignored = ::read(read_end.get(), &byte, 1);
    (void)ignored;
    ::_exit(0);
  }
  std::string proc = "/proc/" + std::to_string(pid);
  Status mapped = WriteStringToFile(proc + "/uid_map", "0 100000 65536");
  if (mapped.ok()) mapped = WriteStringToFile(proc + "/gid_map", "0 100000 65536");
  Result<UniqueFd> fd = OpenFile(proc + "/ns/user", O_RDONLY);
  write_end.reset();
  ::waitpid(pid, nullptr, 0);
  ESKER_RETURN_IF_ERROR(mapped);
  return fd;
}

Finding CheckUserNamespace() {
  Result<UniqueFd> ns = MakeUserNamespace();
  return ns.ok() ? Works("user namespaces with a uid range of their own") : Missing(ns.status());
}

Finding CheckIdMap(const std::string& directory) {
  Result<UniqueFd> ns = MakeUserNamespace();
  if (!ns.ok()) return Missing(ns.status());
  UniqueFd tree(static_cast<int>(
      ::syscall(SYS_open_tree, AT_FDCWD, directory.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)));
  if (!tree.valid()) return Missing(ErrnoError("clone a mount"));
  mount_attr attr = {};
  attr.attr_set = MOUNT_ATTR_IDMAP;
  attr.userns_fd = static_cast<uint64_t>(ns->get());
  if (::syscall(SYS_mount_setattr, tree.get(), "", AT_EMPTY_PATH, &attr, sizeof(attr)) != 0) {
    return Missing(ErrnoError("id-map a mount of the data directory's file system"));
  }
  return Works("id-mapped mounts");
}

Finding CheckPidfd() {
  Result<Process> self = Process::Open(::getpid());
  if (!self.ok()) return Missing(self.status());
  Result<Process> parent = Process::Open(::getppid());
  Result<ProcessIdentity> a = self->identity();
  if (parent.ok() && a.ok()) {
    Result<ProcessIdentity> b = parent->identity();
    if (b.ok() && a->pidfd_inode != b->pidfd_inode) return Works("pidfds name processes for good");
  }
  return FallsBack(
      "all pidfds have one inode (own inodes came with Linux 6.9): a process whose pid "
      "was reused while the server was down is told apart by its cgroup only");
}

Finding CheckCgroups() {
  Result<std::unique_ptr<CgroupRoot>> root =
      CgroupRoot::Open("esker-doctor-" + std::to_string(::getpid()));
  if (!root.ok()) return Missing(root.status());
  CgroupLimits limits{.memory_bytes = 64u << 20, .pids = 16, .cpus = 1};
  Status status = (*root)->Create("probe", limits, 0, 0);
  if (status.ok()) status = (*root)->Freeze("probe", 1000);
  if (status.ok()) status = (*root)->Thaw("probe");
  if (status.ok()) status = (*root)->KillAll("probe", 1000);
  Status removed = (*root)->Remove("probe");
  Status closed = (*root)->Close();
  for (const Status& s : {status, removed, closed}) {
    if (!s.ok()) return Missing(s);
  }
  if ((*root)->unified_controllers()) return Works("cgroup v2: memory, pids, cpu, freeze, kill");
  return Works("cgroup v1 for memory, pids and cpu, the v2 tree for freeze and kill");
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

Finding CheckSeccomp() {
  uint32_t action = SECCOMP_RET_ERRNO;
  if (::syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0) {
    return Works("seccomp filters");
  }
  return Missing(ErrnoError("ask for seccomp"));
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
  add("kernel", CheckKernel());
  Result<TempDir> temp = TempDir::Create(data_at);
  if (!temp.ok()) {
    add("data directory", Missing(temp.status()));
    return findings;
  }
  const std::string& dir = temp->path();
  add("layers (EROFS)", CheckErofs(dir));
  add("lazy data (FUSE)", CheckFuse(dir));
  add("roots (overlayfs)", CheckOverlay(dir));
  add("id-mapped mounts", CheckIdMap(dir));
  add("user namespaces", CheckUserNamespace());
  add("process identity", CheckPidfd());
  add("cgroups", CheckCgroups());
  add("disk limits", CheckUpper(dir));
  add("seccomp", CheckSeccomp());
  add("descriptors", CheckDescriptors());
  add("free space", CheckSpace(data_at));
  add("durable store", CheckFsync(store_at));
  add("mkfs.btrfs", CheckTool("mkfs.btrfs", "btrfs-progs", "no hard disk limits"));
  add("bsdtar", CheckTool("bsdtar", "libarchive-tools", "no `image push dir:`"));
  if (Status removed = temp->Remove(); !removed.ok()) add("clean-up", Missing(removed));
  return findings;
}

}  // namespace esker::cli
