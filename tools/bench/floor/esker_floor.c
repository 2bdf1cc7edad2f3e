// esker-floor: what the bare kernel takes to start a container. Resident, no libraries; the figure
// every other one of Esker's is measured against.
//
//   esker-floor --image FILE.erofs [--root move|pivot] [--idmap] [--net] [--masks N] [--cgroups]
//               [--filter N] [--live N] [--mounts N] [--workers N] [--count N] [--escape]
//
// FILE.erofs holds /tiny (tiny.c) and the directory /proc. Each round: clone with new mount, pid,
// ipc, uts and cgroup namespaces, overlay on the layer with a tmpfs upper, proc, exec of /tiny,
// end.
// --root move: in a template mount namespace, move_mount over "/" and chroot; pivot: in a copy of
// the caller's namespace. --idmap: id-mapped lower and upper, and a child user namespace.
// --cgroups: memory, pids, cpu (v1) and cgroup2 directories of its own with limits. --filter: a
// system call filter of N instructions. --live and --mounts: containers that live, and mounts that
// the caller has, meanwhile. --escape: instead of timing, try the ways back to the old root and say
// for each whether it is closed.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kBase = 0x10000000, kMsRec = 16384, kMsPrivate = 1 << 18, kMntDetach = 2 };
extern int mount(const char*, const char*, const char*, unsigned long, const void*);
extern int umount2(const char*, int);

static struct {
  const char* image;
  int pivot, idmap, net, masks, cgroups, filter, live, mounts, workers, count, escape;
} options = {.workers = 1, .count = 1000};

static int layer_fd, template_ns, user_ns, null_fd;
static int report_fd = -1;  // in a child: where {step, errno} goes

static void Die(const char* step) {
  int error = errno;
  if (report_fd >= 0) {
    char text[128];
    int n = snprintf(text, sizeof(text), "%s: %s", step, strerror(error));
    if (write(report_fd, text, (size_t)n) < 0) _exit(1);
    _exit(1);
  }
  fprintf(stderr, "esker-floor: %s: %s\n", step, strerror(error));
  exit(1);
}
static int Check(long result, const char* step) {
  if (result < 0) Die(step);
  return (int)result;
}

static int FsOpen(const char* type) {
  return Check(syscall(SYS_fsopen, type, FSOPEN_CLOEXEC), type);
}
static void Config(int fs, unsigned command, const char* key, const void* value, int aux) {
  Check(syscall(SYS_fsconfig, fs, command, key, value, aux), key != NULL ? key : "create");
}
static int FsMount(int fs, unsigned attributes) {
  Config(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
  int fd = Check(syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, attributes), "fsmount");
  close(fs);
  return fd;
}
static int Clone(int fd, const char* path) {
  return Check(
      syscall(SYS_open_tree, fd, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH),
      "open_tree");
}
static void IdMap(int fd) {
  struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)user_ns};
  Check(syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH, &attr, sizeof(attr)), "mount_setattr");
}
static void Move(int fd, int to, const char* path) {
  Check(syscall(SYS_move_mount, fd, "", to, path,
                MOVE_MOUNT_F_EMPTY_PATH | (path[0] == 0 ? MOVE_MOUNT_T_EMPTY_PATH : 0)),
        "move_mount");
}

static int MakeUserNamespace(void) {
  int hold[2];
  Check(pipe2(hold, O_CLOEXEC), "pipe");
  struct clone_args args = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
  pid_t pid = Check(syscall(SYS_clone3, &args, sizeof(args)), "clone user namespace");
  if (pid == 0) {
    char byte;
    close(hold[1]);
    _exit(read(hold[0], &byte, 1) != 0);
  }
  char path[64], map[64];
  int n = snprintf(map, sizeof(map), "0 %d 65536", kBase);
  const char* files[] = {"uid_map", "gid_map"};
  for (int i = 0; i < 2; ++i) {
    snprintf(path, sizeof(path), "/proc/%d/%s", pid, files[i]);
    int fd = Check(open(path, O_WRONLY | O_CLOEXEC), path);
    Check(write(fd, map, (size_t)n), "write id map");
    close(fd);
  }
  snprintf(path, sizeof(path), "/proc/%d/ns/user", pid);
  int fd = Check(open(path, O_RDONLY | O_CLOEXEC), path);
  close(hold[0]);
  close(hold[1]);
  waitpid(pid, NULL, 0);
  return fd;
}

// A mount namespace whose only mount is an empty, read-only tmpfs.
static int MakeTemplate(void) {
  pid_t pid = Check(fork(), "fork");
  if (pid == 0) {
    Check(unshare(CLONE_NEWNS), "unshare");
    Check(mount("none", "/", NULL, kMsRec | kMsPrivate, NULL), "private");
    int root = FsMount(FsOpen("tmpfs"), 0);
    Move(root, AT_FDCWD, "/tmp");
    Check(chdir("/tmp"), "chdir");
    Check(syscall(SYS_pivot_root, ".", "."), "pivot_root");
    Check(umount2(".", kMntDetach), "umount");
    Check(mount(NULL, "/", NULL, 32 | 1, NULL), "remount read-only");
    raise(SIGSTOP);
    _exit(0);
  }
  int status;
  waitpid(pid, &status, WUNTRACED);
  if (!WIFSTOPPED(status)) exit(1);
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/ns/mnt", pid);
  int fd = Check(open(path, O_RDONLY | O_CLOEXEC), path);
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  return fd;
}

// setfsuid away from 0 takes the file capabilities out of the effective set; the overlay works with
// the credentials that it is made with, so they have to be whole.
static void RaiseCapabilities(void) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2];
  Check(syscall(SYS_capget, &header, data), "capget");
  for (int i = 0; i < 2; ++i) data[i].effective = data[i].permitted;
  Check(syscall(SYS_capset, &header, data), "capset");
}

static int MakeOverlay(void) {
  int lower = Clone(layer_fd, "");
  if (options.idmap) IdMap(lower);
  int upper_mount = FsMount(FsOpen("tmpfs"), 0);
  Check(mkdirat(upper_mount, "upper", 0755), "mkdir upper");
  Check(mkdirat(upper_mount, "work", 0755), "mkdir work");
  if (options.idmap) {
    IdMap(upper_mount);
    setfsuid(kBase);
    setfsgid(kBase);
    RaiseCapabilities();
  }
  int upper = Check(openat(upper_mount, "upper", O_PATH | O_CLOEXEC), "open upper");
  int work = Check(openat(upper_mount, "work", O_PATH | O_CLOEXEC), "open work");
  int fs = FsOpen("overlay");
  Config(fs, FSCONFIG_SET_FD, "lowerdir+", NULL, lower);
  Config(fs, FSCONFIG_SET_FD, "upperdir", NULL, upper);
  Config(fs, FSCONFIG_SET_FD, "workdir", NULL, work);
  Config(fs, FSCONFIG_SET_STRING, "index", "off", 0);
  Config(fs, FSCONFIG_SET_STRING, "metacopy", "off", 0);
  Config(fs, FSCONFIG_SET_STRING, "redirect_dir", "nofollow", 0);
  Config(fs, FSCONFIG_SET_FLAG, "volatile", NULL, 0);
  int root = FsMount(fs, 0);
  int proof = Check(openat(root, "proof", O_CREAT | O_EXCL | O_CLOEXEC, 0600), "prove writable");
  close(proof);
  Check(unlinkat(root, "proof", 0), "remove proof");
  setfsuid(0);
  setfsgid(0);
  return root;
}

static void MountProc(int root) {
  int proc = FsMount(FsOpen("proc"), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
  Move(proc, root, "proc");
  static const char* const kMasked[] = {"kcore",       "keys",          "kallsyms",
                                        "timer_list",  "kpagecount",    "kpageflags",
                                        "kpagecgroup", "sysrq-trigger", "kmsg"};
  for (int i = 0; i < options.masks; ++i) {
    int over = openat(proc, kMasked[i % 9], O_PATH | O_CLOEXEC);
    if (over < 0) continue;
    int null = Clone(null_fd, "null");
    Move(null, over, "");
    close(null);
    close(over);
  }
}

// Ways back to what was the root before; each says what it found.
static void Say(const char* way, const char* outcome) {
  char text[256];
  int n = snprintf(text, sizeof(text), "  %-52s %s\n", way, outcome);
  if (write(2, text, (size_t)n) < 0) _exit(1);
}
static void SayRoot(const char* way, int rc) {
  struct stat here, tiny;
  if (rc != 0) return Say(way, strerror(errno));
  if (stat(".", &here) != 0) return Say(way, "no root");
  Say(way, stat("./tiny", &tiny) == 0 ? "the sandbox's own root" : "OLD ROOT REACHED");
}
static void TryEscapes(void) {
  mkdir("/cell", 0755);
  int rc = chroot("/cell");
  for (int i = 0; i < 64 && rc == 0; ++i) rc = chdir("..");
  SayRoot("chroot into a directory, then .. (CAP_SYS_CHROOT)", rc);
  if (rc == 0 && chroot(".") != 0) Say("chroot back", strerror(errno));
  int ns = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
  SayRoot("setns into its own mount namespace", setns(ns, CLONE_NEWNS));
  Say("umount / lazily", umount2("/", kMntDetach) == 0 ? "UNMOUNTED" : strerror(errno));
  Say("mount a tmpfs", mount("x", "/proc", "tmpfs", 0, NULL) == 0 ? "MOUNTED" : strerror(errno));
  Say("unshare a user namespace", unshare(CLONE_NEWUSER) == 0 ? "MADE" : strerror(errno));
  Say("unshare a mount namespace", unshare(CLONE_NEWNS) == 0 ? "MADE" : strerror(errno));
  Say("  and then umount /", umount2("/", kMntDetach) == 0 ? "UNMOUNTED" : strerror(errno));
  Say("open_tree(/, clone)",
      syscall(SYS_open_tree, AT_FDCWD, "/", OPEN_TREE_CLONE) >= 0 ? "CLONED" : strerror(errno));
}

// One directory of its own in each hierarchy that Esker uses.
static const char* const kHierarchies[] = {"memory", "pids", "cpu", "unified"};
static const char* const kLimits[][2] = {{"memory.limit_in_bytes", "536870912"},
                                         {"pids.max", "1024"}};
enum { kHierarchyCount = 4, kUnified = 3 };

static void CgroupPath(char* out, size_t size, int hierarchy, int number, const char* file) {
  snprintf(out, size, "/sys/fs/cgroup/%s/esker-floor-%d-%d%s", kHierarchies[hierarchy], getpid(),
           number, file);
}
static int MakeCgroups(int number, int tasks[kUnified]) {
  char path[160], file[64];
  for (int i = 0; i < kHierarchyCount; ++i) {
    CgroupPath(path, sizeof(path), i, number, "");
    Check(mkdir(path, 0755), path);
    if (i == kUnified) break;
    if (i < 2) {
      snprintf(file, sizeof(file), "/%s", kLimits[i][0]);
      CgroupPath(path, sizeof(path), i, number, file);
      int fd = Check(open(path, O_WRONLY | O_CLOEXEC), path);
      Check(write(fd, kLimits[i][1], strlen(kLimits[i][1])), path);
      close(fd);
    }
    CgroupPath(path, sizeof(path), i, number, "/tasks");
    tasks[i] = Check(open(path, O_WRONLY | O_CLOEXEC), path);
  }
  return Check(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), path);
}
static void RemoveCgroups(int number) {
  char path[160];
  for (int i = 0; i < kHierarchyCount; ++i) {
    CgroupPath(path, sizeof(path), i, number, "");
    // The kernel takes a dead process out of its cgroup a moment after it can be waited for.
    for (int tries = 0; rmdir(path) != 0 && errno == EBUSY && tries < 1000; ++tries) sched_yield();
  }
}

// Each number compared in turn; all are allowed in the end.
static void InstallFilter(void) {
  struct sock_filter* code = calloc((size_t)options.filter + 2, sizeof(*code));
  code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0);
  for (int i = 1; i < options.filter; ++i) {
    code[i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)(1000 + i), 0, 0);
  }
  code[options.filter] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog program = {(unsigned short)(options.filter + 1), code};
  Check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges");
  Check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program), "seccomp");
}

static void Child(int stay, const int tasks[kUnified]) {
  for (int i = 0; options.cgroups && i < kUnified; ++i) {
    Check(write(tasks[i], "0", 1), "join a cgroup");
  }
  if (!options.pivot) {
    // The layer belongs to the caller's namespace or to none, so it is cloned by descriptor before.
    Check(setns(template_ns, CLONE_NEWNS), "enter template");
  }
  Check(unshare(CLONE_NEWNS), "unshare mount namespace");
  if (options.net) Check(unshare(CLONE_NEWNET), "unshare network");
  if (options.pivot) Check(mount("none", "/", NULL, kMsRec | kMsPrivate, NULL), "private");
  int root = MakeOverlay();
  MountProc(root);
  Check(fchdir(root), "chdir");
  if (options.pivot) {
    Move(root, AT_FDCWD, "/mnt");
    Check(fchdir(root), "chdir");
    Check(syscall(SYS_pivot_root, ".", "."), "pivot_root");
    Check(umount2(".", kMntDetach), "umount old root");
  } else {
    Move(root, AT_FDCWD, "/");
    Check(chroot("."), "chroot");
  }
  if (options.idmap) {
    Check(setns(user_ns, CLONE_NEWUSER), "enter user namespace");
    Check(setresgid(0, 0, 0), "setgid");
    Check(setresuid(0, 0, 0), "setuid");
  }
  if (options.filter > 0) InstallFilter();
  if (options.escape) {
    TryEscapes();
    _exit(0);
  }
  char* argv[] = {"tiny", stay ? "stay" : NULL, NULL};
  char* env[] = {NULL};
  execve("/tiny", argv, env);
  Die("exec /tiny");
}

static pid_t Start(int stay, int number, int ready[2]) {
  Check(pipe2(ready, O_CLOEXEC), "pipe");
  int tasks[kUnified] = {-1, -1, -1}, unified = -1;
  struct clone_args args = {.flags = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP,
                            .exit_signal = SIGCHLD};
  if (options.cgroups) {
    unified = MakeCgroups(number, tasks);
    args.flags |= CLONE_INTO_CGROUP;
    args.cgroup = (uint64_t)unified;
  }
  pid_t pid = Check(syscall(SYS_clone3, &args, sizeof(args)), "clone");
  if (pid == 0) {
    report_fd = ready[1];
    close(ready[0]);
    Child(stay, tasks);
  }
  for (int i = 0; options.cgroups && i < kUnified; ++i) close(tasks[i]);
  if (unified >= 0) close(unified);
  close(ready[1]);
  return pid;
}
static void AwaitExec(int ready) {
  char text[128];
  ssize_t n = read(ready, text, sizeof(text) - 1);
  close(ready);
  if (n <= 0) return;
  text[n] = 0;
  fprintf(stderr, "esker-floor: %s\n", text);
  exit(1);
}

static int64_t Now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static int Compare(const void* a, const void* b) {
  int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
  return (x > y) - (x < y);
}

static void Work(int out) {
  int64_t* ready_ns = calloc((size_t)options.count, sizeof(int64_t));
  for (int i = 0; i < options.count; ++i) {
    int ready[2];
    int64_t start = Now();
    pid_t pid = Start(0, i, ready);
    AwaitExec(ready[0]);
    ready_ns[i] = Now() - start;
    waitpid(pid, NULL, 0);
    if (options.cgroups) RemoveCgroups(i);
  }
  qsort(ready_ns, (size_t)options.count, sizeof(int64_t), Compare);
  int64_t figures[3] = {ready_ns[options.count / 10], ready_ns[options.count / 2],
                        ready_ns[options.count * 99 / 100]};
  if (write(out, figures, sizeof(figures)) < 0) _exit(1);
}

static void Measure(void) {
  int results[2];
  Check(pipe2(results, O_CLOEXEC), "pipe");
  int64_t start = Now();
  for (int i = 0; i < options.workers; ++i) {
    if (Check(fork(), "fork") == 0) {
      Work(results[1]);
      _exit(0);
    }
  }
  close(results[1]);
  int64_t sum[3] = {0, 0, 0}, one[3];
  int got = 0;
  while (read(results[0], one, sizeof(one)) == (ssize_t)sizeof(one)) {
    sum[0] += one[0];
    sum[1] += one[1];
    sum[2] += one[2];
    ++got;
  }
  double seconds = (double)(Now() - start) / 1e9;
  if (got == 0) exit(1);
  printf(
      "root=%s idmap=%d net=%d masks=%d cgroups=%d filter=%d live=%d mounts=%d workers=%d "
      "per_second=%.0f "
      "ready_p10_us=%lld ready_p50_us=%lld ready_p99_us=%lld\n",
      options.pivot ? "pivot" : "move", options.idmap, options.net, options.masks, options.cgroups,
      options.filter, options.live, options.mounts, options.workers,
      options.workers * options.count / seconds, (long long)(sum[0] / got / 1000),
      (long long)(sum[1] / got / 1000), (long long)(sum[2] / got / 1000));
}

static void Parse(int argc, char** argv) {
  static const struct option kOptions[] = {
      {"image", 1, 0, 'i'},  {"root", 1, 0, 'r'},    {"idmap", 0, 0, 'm'},  {"net", 0, 0, 'n'},
      {"masks", 1, 0, 'k'},  {"cgroups", 0, 0, 'g'}, {"filter", 1, 0, 'f'}, {"live", 1, 0, 'l'},
      {"mounts", 1, 0, 'o'}, {"workers", 1, 0, 'w'}, {"count", 1, 0, 'c'},  {"escape", 0, 0, 'e'},
      {0, 0, 0, 0}};
  for (int c; (c = getopt_long(argc, argv, "", kOptions, NULL)) != -1;) {
    switch (c) {
      case 'i':
        options.image = optarg;
        break;
      case 'r':
        options.pivot = strcmp(optarg, "pivot") == 0;
        break;
      case 'm':
        options.idmap = 1;
        break;
      case 'n':
        options.net = 1;
        break;
      case 'k':
        options.masks = atoi(optarg);
        break;
      case 'g':
        options.cgroups = 1;
        break;
      case 'f':
        options.filter = atoi(optarg);
        break;
      case 'l':
        options.live = atoi(optarg);
        break;
      case 'o':
        options.mounts = atoi(optarg);
        break;
      case 'w':
        options.workers = atoi(optarg);
        break;
      case 'c':
        options.count = atoi(optarg);
        break;
      case 'e':
        options.escape = 1;
        break;
      default:
        exit(2);
    }
  }
  if (options.image == NULL || options.count < 1 || options.workers < 1) {
    fprintf(stderr, "usage: esker-floor --image FILE.erofs [...]; see the source's head\n");
    exit(2);
  }
}

int main(int argc, char** argv) {
  Parse(argc, argv);
  Check(unshare(CLONE_NEWNS), "unshare");
  Check(mount("none", "/", NULL, kMsRec | kMsPrivate, NULL), "private");
  // What fsmount made may be cloned from any namespace; what open_tree made only from where it
  // came.
  null_fd = FsMount(FsOpen("tmpfs"), 0);
  Check(mknodat(null_fd, "null", S_IFCHR | 0666, makedev(1, 3)), "mknod");
  int fs = FsOpen("erofs");
  Config(fs, FSCONFIG_SET_STRING, "source", options.image, 0);
  Config(fs, FSCONFIG_SET_FLAG, "ro", NULL, 0);
  layer_fd = FsMount(fs, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV);
  template_ns = MakeTemplate();
  user_ns = MakeUserNamespace();
  if (options.mounts > 0) Check(mount("x", "/media", "tmpfs", 0, NULL), "mount");
  for (int i = 0; i < options.mounts; ++i) {
    char path[64];
    snprintf(path, sizeof(path), "/media/%d", i);
    mkdir(path, 0755);
    Move(Clone(layer_fd, ""), AT_FDCWD, path);
  }
  pid_t* live = calloc((size_t)options.live + 1, sizeof(pid_t));
  for (int i = 0; i < options.live; ++i) {
    int ready[2];
    live[i] = Start(1, i, ready);
    AwaitExec(ready[0]);
  }
  if (options.escape) {
    int ready[2];
    pid_t pid = Start(0, options.live, ready);
    AwaitExec(ready[0]);
    waitpid(pid, NULL, 0);
    if (options.cgroups) RemoveCgroups(options.live);
  } else {
    Measure();
  }
  for (int i = 0; i < options.live; ++i) kill(live[i], SIGKILL);
  for (int i = 0; i < options.live; ++i) {
    waitpid(live[i], NULL, 0);
    if (options.cgroups) RemoveCgroups(i);
  }
  return 0;
}
