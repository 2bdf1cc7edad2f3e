#include "container_child.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "container_steps.h"
#include "loopback.h"

namespace esker::keeper {
namespace {

constexpr int kInitListenFd = 3, kInitCgroupFd = 4, kInitFilterFd = 5;
constexpr int kExecFd = 6, kReportFd = 7;
constexpr char kOomScore[] = "200";  // the node's own processes are the last to be killed

int report_fd = -1;  // of this child; the parent never sets it

[[noreturn]] void Fail(Step step, int error, const char* detail = "") {
  Report report;
  report.step = step;
  report.error = error != 0 ? error : EIO;
  strncpy(report.detail, detail, sizeof(report.detail) - 1);
  ssize_t ignored = write(report_fd, &report, sizeof(report));
  (void)ignored;
  _exit(1);
}

int Check(long result, Step step, const char* detail = "") {
  if (result < 0) Fail(step, errno, detail);
  return static_cast<int>(result);
}

void WriteFile(const char* path, const char* text, Step step) {
  int fd = Check(open(path, O_WRONLY | O_CLOEXEC), step, path);
  Check(write(fd, text, strlen(text)), step, path);
  close(fd);
}

// --- mount API ------------------------------------------------------------------------------

int FsOpen(const char* type, Step step) { return Check(fsopen(type, FSOPEN_CLOEXEC), step); }

// The kernel explains a refused mount in messages on the file system context; the first one counts.
[[noreturn]] void FailMount(int fs, Step step, const char* key) {
  int error = errno;
  char text[200];
  ssize_t n = read(fs, text, sizeof(text) - 1);
  if (n <= 2) Fail(step, error, key);
  text[n] = 0;
  Fail(step, error, text + 2);  // behind "e "
}

void Option(int fs, const char* key, const char* value, Step step) {
  unsigned command = value != nullptr ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG;
  if (fsconfig(fs, command, key, value, 0) != 0) FailMount(fs, step, key);
}

void OptionFd(int fs, const char* key, int fd, Step step) {
  if (fsconfig(fs, FSCONFIG_SET_FD, key, nullptr, fd) != 0) FailMount(fs, step, key);
}

int FsMount(int fs, unsigned attributes, Step step) {
  if (fsconfig(fs, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) FailMount(fs, step, "");
  int fd = Check(fsmount(fs, FSMOUNT_CLOEXEC, attributes), step);
  close(fs);
  return fd;
}

int CloneTree(int fd, const char* path, Step step) {
  return Check(open_tree(fd, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH), step,
               path);
}

void SetAttributes(int fd, uint64_t attributes, int user_ns, Step step) {
  mount_attr attr = {};
  attr.attr_set = attributes;
  if (user_ns >= 0) {
    attr.attr_set |= MOUNT_ATTR_IDMAP;
    attr.userns_fd = static_cast<uint64_t>(user_ns);
  }
  Check(mount_setattr(fd, "", AT_EMPTY_PATH, &attr, sizeof(attr)), step);
}

void Attach(int mount_fd, int target_fd, Step step, const char* detail = "") {
  Check(move_mount(mount_fd, "", target_fd, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH),
        step, detail);
}

// Looks a name up in the new root without following any link that the image may have put there.
int OpenPlain(int dir, const char* name, uint64_t flags) {
  open_how how = {};
  how.flags = flags | O_PATH | O_CLOEXEC | O_NOFOLLOW;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  return static_cast<int>(syscall(SYS_openat2, dir, name, &how, sizeof(how)));
}

// --- the root -------------------------------------------------------------------------------

struct Child {
  const BuildPlan& plan;
  int lowers[512];
  size_t lower_count = 0;
  int upper = -1;  // mount of the volume
  int filter = -1;
  int root = -1;
};

void JoinCgroups(const BuildPlan& plan) {
  // "0" is the writer itself. By `tasks`: writing to cgroup.procs waits for an RCU grace period.
  for (size_t i = 0; i < plan.task_count; ++i) {
    Check(write(plan.tasks[i], "0", 1), Step::kJoinCgroup);
  }
}

// An id-mapped clone of every layer: on-disk owner 0 is the range's first id.
void MapLowers(Child& c) {
  for (size_t i = 0; i < c.plan.layer_count; ++i) {
    int fd = CloneTree(c.plan.layers[i], "", Step::kCloneLayer);
    SetAttributes(fd, 0, c.plan.user_ns, Step::kMapLayer);
    c.lowers[c.lower_count++] = fd;
  }
  int skeleton = CloneTree(c.plan.skeleton, "", Step::kCloneLayer);
  SetAttributes(skeleton, 0, c.plan.user_ns, Step::kMapLayer);
  c.lowers[c.lower_count++] = skeleton;
}

void EnterNetwork(const BuildPlan& plan) {
  if (!plan.private_network) return;
  if (plan.network_ns >= 0) {
    Check(setns(plan.network_ns, CLONE_NEWNET), Step::kNetwork);
    return;
  }
  Check(unshare(CLONE_NEWNET), Step::kNetwork);
  int proc = Check(OpenOwnProc(), Step::kNetwork, "open /proc");
  const char* failed = SetUpLoopback(proc);
  if (failed != nullptr) Fail(Step::kNetwork, errno, failed);
}

// overlayfs works on its upper with the credentials that mounted it. They are those of the range's
// root, so that new files belong to it, but setfsuid away from 0 takes the file capabilities out
// of the effective set, without which the work directory is refused (EACCES).
void BecomeOwner(uint32_t id) {
  setfsgid(id);
  setfsuid(id);
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  Check(syscall(SYS_capget, &header, data), Step::kCapabilities);
  for (__user_cap_data_struct& d : data) d.effective = d.permitted;
  Check(syscall(SYS_capset, &header, data), Step::kCapabilities);
}

int MakeTmpfsUpper(const BuildPlan& plan) {
  int fs = FsOpen("tmpfs", Step::kUpperTmpfs);
  Option(fs, "mode", "0755", Step::kUpperTmpfs);
  Option(fs, "uid", plan.first_id_text, Step::kUpperTmpfs);
  Option(fs, "gid", plan.first_id_text, Step::kUpperTmpfs);
  int fd = FsMount(fs, 0, Step::kUpperTmpfs);
  Check(mkdirat(fd, "upper", 0755), Step::kUpperTmpfs);
  Check(mkdirat(fd, "work", 0755), Step::kUpperTmpfs);
  return fd;
}

bool IsEmptyDirectory(int parent, const char* name) {
  int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return false;
  // "." and ".." take 24 bytes each; a third entry would make it more.
  alignas(8) char entries[512];
  long n = syscall(SYS_getdents64, fd, entries, sizeof(entries));
  close(fd);
  return n >= 0 && n <= 48;
}

// True: nothing was ever written to it.
bool AddUpper(int fs, Child& c) {
  int volume = c.plan.volume;
  if (volume < 0) {
    volume = MakeTmpfsUpper(c.plan);
  } else {
    SetAttributes(volume, 0, c.plan.user_ns, Step::kMapUpper);
    // Left by an earlier life of the sandbox that was killed; overlayfs refuses what has it. It
    // guards against a page cache lost with the machine, and a volume never outlives a boot.
    unlinkat(volume, "work/work/incompat/volatile/dirty", 0);
    unlinkat(volume, "work/work/incompat/volatile", AT_REMOVEDIR);
  }
  c.upper = volume;
  constexpr int kFlags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  int upper = Check(openat(volume, "upper", kFlags), Step::kOpenUpper, "upper");
  int work = Check(openat(volume, "work", kFlags), Step::kOpenUpper, "work");
  bool is_new = IsEmptyDirectory(volume, "upper");
  OptionFd(fs, "upperdir", upper, Step::kOverlay);
  OptionFd(fs, "workdir", work, Step::kOverlay);
  // The files of a live sandbox are not promised to survive the machine: no fsync is passed on.
  Option(fs, "volatile", nullptr, Step::kOverlay);
  return is_new;
}

// overlayfs turns read-only without an error when its work directory does not suit it.
void ProveWritable(int root) {
  int fd = openat(root, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0 && errno == EOPNOTSUPP) {
    constexpr char kName[] = ".esker-proof";
    fd = Check(openat(root, kName, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600),
               Step::kProveWritable);
    Check(unlinkat(root, kName, 0), Step::kProveWritable);
  }
  Check(fd, Step::kProveWritable);
  close(fd);
}

// The upper's root directory covers those of the layers: a new one takes over the owner, mode and
// time of the topmost layer's, so that the root looks as the image or snapshot has it.
void DressNewRoot(const Child& c) {
  struct stat image;
  Check(fstat(c.lowers[0], &image), Step::kOverlay, "stat the image's root");
  Check(fchownat(c.root, "", image.st_uid, image.st_gid, AT_EMPTY_PATH), Step::kOverlay,
        "owner of the root");
  Check(fchmodat(c.root, ".", image.st_mode & 07777, 0), Step::kOverlay, "mode of the root");
  timespec times[2] = {image.st_mtim, image.st_mtim};
  Check(utimensat(c.root, ".", times, 0), Step::kOverlay, "time of the root");
}

void MountRoot(Child& c) {
  BecomeOwner(c.plan.first_id);
  bool new_upper = false;
  int fs = FsOpen("overlay", Step::kOverlay);
  Option(fs, "source", "esker", Step::kOverlay);
  for (size_t i = 0; i < c.lower_count; ++i) OptionFd(fs, "lowerdir+", c.lowers[i], Step::kOverlay);
  Option(fs, "redirect_dir", "nofollow", Step::kOverlay);
  Option(fs, "metacopy", "off", Step::kOverlay);
  if (!c.plan.read_only) {
    Option(fs, "index", "off", Step::kOverlay);
    new_upper = AddUpper(fs, c);
  }
  c.root =
      FsMount(fs, MOUNT_ATTR_NODEV | (c.plan.read_only ? MOUNT_ATTR_RDONLY : 0), Step::kOverlay);
  if (!c.plan.read_only) ProveWritable(c.root);
  if (new_upper) DressNewRoot(c);
  setfsuid(0);
  setfsgid(0);
}

// A detached mount goes with its last descriptor, and that close waits for an RCU grace period:
// 0.25 ms for each, before init may start. Below the root, where nothing leads, they go together
// with the namespace instead.
void BuryMount(int fd) {
  if (fd < 0) return;
  // What comes on top of it must not appear on its peers: the pool's and the cgroups' in the host.
  mount_attr attr = {};
  attr.propagation = MS_PRIVATE;
  Check(mount_setattr(fd, "", AT_EMPTY_PATH, &attr, sizeof(attr)), Step::kEnterRoot);
  Check(move_mount(fd, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH), Step::kEnterRoot);
}

void EnterRoot(Child& c) {
  for (size_t i = 0; i < c.lower_count; ++i) BuryMount(c.lowers[i]);
  BuryMount(c.upper);
  BuryMount(c.plan.unified);
  // Over "/", not below it: whoever gets out of the chroot climbs back up into the same root.
  Check(move_mount(c.root, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH), Step::kEnterRoot);
  Check(fchdir(c.root), Step::kEnterRoot);
  Check(chroot("."), Step::kEnterRoot);
}

// --- what is mounted in it ------------------------------------------------------------------

int MountPoint(const Child& c, const char* name) {
  int fd = OpenPlain(c.root, name, O_DIRECTORY);
  if (fd < 0 && errno == ENOENT && !c.plan.read_only && mkdirat(c.root, name, 0755) == 0) {
    // An image can hide the skeleton's directory with a whiteout.
    Check(fchownat(c.root, name, c.plan.first_id, c.plan.first_id, AT_SYMLINK_NOFOLLOW),
          Step::kMountPoint, name);
    fd = OpenPlain(c.root, name, O_DIRECTORY);
  }
  return Check(fd, Step::kMountPoint, name);
}

void AttachAt(const Child& c, int mount_fd, const char* name, Step step) {
  int target = MountPoint(c, name);
  Attach(mount_fd, target, step, name);
  close(target);
  close(mount_fd);
}

void CoverProc(const Child& c, int proc) {
  for (size_t i = 0; i < c.plan.cover_count; ++i) {
    const ProcCover& cover = c.plan.covers[i];
    const char* name = cover.name.c_str();
    int target = OpenPlain(proc, name, 0);
    if (target < 0 && errno == ENOENT) continue;  // differs by namespace, or a module is gone
    Check(target, Step::kMaskProc, name);
    int fd = -1;
    switch (cover.with) {
      case ProcCover::With::kNull:
        fd = CloneTree(c.plan.dev, "null", Step::kMaskProc);
        break;
      case ProcCover::With::kEmptyDirectory:
        fd = CloneTree(c.plan.skeleton, "proc", Step::kMaskProc);  // empty and read-only
        break;
      case ProcCover::With::kReadOnlyItself:
        fd = CloneTree(target, "", Step::kMaskProc);
        SetAttributes(fd, MOUNT_ATTR_RDONLY, -1, Step::kMaskProc);
        break;
    }
    Attach(fd, target, Step::kMaskProc, name);
    close(fd);
    close(target);
  }
}

void MountProc(const Child& c) {
  int proc = FsMount(FsOpen("proc", Step::kProc),
                     MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, Step::kProc);
  int target = MountPoint(c, "proc");
  Attach(proc, target, Step::kProc);
  close(target);
  CoverProc(c, proc);
  close(proc);
}

void MountDev(const Child& c) {
  int dev = CloneTree(c.plan.dev, "", Step::kDev);
  SetAttributes(dev, 0, c.plan.user_ns, Step::kDev);
  AttachAt(c, dev, "dev", Step::kDev);

  int fs = FsOpen("devpts", Step::kPts);
  Option(fs, "ptmxmode", "0666", Step::kPts);
  Option(fs, "mode", "0620", Step::kPts);
  Option(fs, "gid", c.plan.tty_gid_text, Step::kPts);
  // The host has kernel.pty.max (4096) of them for everybody.
  Option(fs, "max", "64", Step::kPts);
  int pts = FsMount(fs, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, Step::kPts);
  AttachAt(c, pts, "dev/pts", Step::kPts);

  constexpr unsigned kPlain = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  fs = FsOpen("tmpfs", Step::kShm);
  Option(fs, "mode", "1777", Step::kShm);
  Option(fs, "size", c.plan.shm_bytes_text, Step::kShm);
  Option(fs, "uid", c.plan.first_id_text, Step::kShm);
  Option(fs, "gid", c.plan.first_id_text, Step::kShm);
  AttachAt(c, FsMount(fs, kPlain, Step::kShm), "dev/shm", Step::kShm);

  AttachAt(c, FsMount(FsOpen("mqueue", Step::kMqueue), kPlain, Step::kMqueue), "dev/mqueue",
           Step::kMqueue);
}

void MountSys(const Child& c) {
  int sys = CloneTree(c.plan.sys, "", Step::kSys);
  SetAttributes(sys, 0, c.plan.user_ns, Step::kSys);
  AttachAt(c, sys, "sys", Step::kSys);
}

// --- init -----------------------------------------------------------------------------------

void PlaceDescriptors(const Child& c) {
  constexpr Step kStep = Step::kDescriptors;
  // The sandbox's own /dev/null, so that not even this descriptor leads out.
  int null = Check(open("/dev/null", O_RDWR | O_CLOEXEC), kStep, "/dev/null");
  Check(dup3(null, 0, 0), kStep);
  Check(dup3(null, 1, 0), kStep);
  if (c.plan.log != 2) Check(dup3(c.plan.log, 2, 0), kStep);
  Check(dup3(c.plan.listen, kInitListenFd, 0), kStep);
  if (c.plan.unified >= 0) {
    Check(dup3(c.plan.unified, kInitCgroupFd, 0), kStep);
  } else {
    close(kInitCgroupFd);
  }
  Check(dup3(c.filter, kInitFilterFd, 0), kStep);
  Check(dup3(c.plan.init, kExecFd, O_CLOEXEC), kStep);
}

void LimitFiles(const BuildPlan& plan) {
  if (plan.nofile_limit == 0) return;
  rlimit limit = {plan.nofile_limit, plan.nofile_limit};
  Check(setrlimit(RLIMIT_NOFILE, &limit), Step::kNofile);
}

void EnterUserNamespace(const BuildPlan& plan) {
  Check(setns(plan.user_ns, CLONE_NEWUSER), Step::kUserNamespace);
  // Raw calls: this process has one thread, and glibc's versions would look for others.
  Check(syscall(SYS_setgroups, 0, nullptr), Step::kUser, "setgroups");
  Check(syscall(SYS_setresgid, 0, 0, 0), Step::kUser, "setresgid");
  Check(syscall(SYS_setresuid, 0, 0, 0), Step::kUser, "setresuid");
}

void TieToKeeper(const BuildPlan& plan) {
  // Every change of credentials clears it, so it comes last; then the keeper is looked at once
  // more.
  Check(prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), Step::kParentDeath);
  pollfd keeper = {plan.keeper_pidfd, POLLIN, 0};
  if (poll(&keeper, 1, 0) != 0) Fail(Step::kParentDeath, ESRCH, "the keeper has ended");
}

[[noreturn]] void Execute() {
  static char name[] = "esker-init";
  static char path[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  char* argv[] = {name, nullptr};
  char* env[] = {path, nullptr};
  Check(dup3(report_fd, kReportFd, O_CLOEXEC), Step::kDescriptors);
  report_fd = kReportFd;
  Check(close_range(kReportFd + 1, ~0u, 0), Step::kDescriptors);
  Report last;
  last.step = Step::kExec;
  Check(write(report_fd, &last, sizeof(last)), Step::kExec);
  syscall(SYS_execveat, kExecFd, "", argv, env, AT_EMPTY_PATH);
  Fail(Step::kExec, errno);
}

void ResetSignals() {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int s : {SIGPIPE, SIGHUP, SIGTERM, SIGINT, SIGCHLD}) signal(s, SIG_DFL);
}

}  // namespace

void BuildContainer(const BuildPlan& plan) {
  report_fd = plan.report;
  Child c{plan};
  ResetSignals();
  setsid();
  umask(0);
  // First of all, so that the rest is charged to the sandbox and its cgroup namespace starts there.
  JoinCgroups(plan);
  // While the keeper's own /proc can still be seen.
  WriteFile("/proc/self/oom_score_adj", kOomScore, Step::kOomScore);
  c.filter = Check(open(plan.filter_path, O_RDONLY | O_CLOEXEC), Step::kOpenFilter);
  EnterNetwork(plan);
  MapLowers(c);
  Check(setns(plan.template_ns, CLONE_NEWNS), Step::kEnterTemplate);
  Check(unshare(CLONE_NEWNS | CLONE_NEWCGROUP), Step::kUnshare);
  MountRoot(c);
  EnterRoot(c);
  MountProc(c);
  MountDev(c);
  MountSys(c);
  Check(sethostname(plan.hostname, strlen(plan.hostname)), Step::kHostname);
  PlaceDescriptors(c);
  LimitFiles(plan);
  umask(022);
  EnterUserNamespace(plan);
  TieToKeeper(plan);
  Execute();
}

}  // namespace esker::keeper
