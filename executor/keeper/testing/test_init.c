// A PID 1 for the keeper's tests: listens on descriptor 3 and does what one-line messages ask, so
// that a test looks at a sandbox from inside. Static, no libraries of the image.
//
//   read PATH       the file's content, or "error N"
//   sum PATH        64-bit FNV-1a of the content
//   write PATH      creates it with content "x"
//   link PATH       what readlink says
//   stat PATH       "mode uid gid"
//   list PATH       names in a directory, one a line
//   ids             uid gid, capability sets, parent-death signal, descriptors open
//   lo              "up" if the loopback interface is
//   port            binds TCP port 80, opens a ping socket
//   child-look      from a child: reads /proc/1/mem, /proc/1/exe, traces and kills PID 1
//   escape          from a child: the ways back to the old root (docs/decisions/0002-keeper.md)
//   filter          from a child: installs the filter of descriptor 5, then tries refused calls
//   exit N          ends with that code
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char reply[60000];
static size_t reply_size;

__attribute__((format(printf, 1, 2))) static void Say(const char* format, ...) {
  va_list args;
  va_start(args, format);
  int n = vsnprintf(reply + reply_size, sizeof(reply) - reply_size, format, args);
  va_end(args);
  if (n > 0) reply_size += (size_t)n;
  if (reply_size >= sizeof(reply)) reply_size = sizeof(reply) - 1;
}
static void SayOutcome(const char* what, long rc) {
  if (rc >= 0) {
    Say("%s=done\n", what);
  } else {
    Say("%s=%d\n", what, errno);
  }
}

static void Read(const char* path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Say("error %d", errno);
  ssize_t n;
  while ((n = read(fd, reply + reply_size, sizeof(reply) - reply_size)) > 0) {
    reply_size += (size_t)n;
  }
  if (n < 0) Say("error %d", errno);
  close(fd);
}

static void Sum(const char* path) {
  static unsigned char buffer[1 << 20];
  unsigned long sum = 14695981039346656037u;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Say("error %d", errno);
  ssize_t n;
  while ((n = read(fd, buffer, sizeof(buffer))) > 0) {
    for (ssize_t i = 0; i < n; ++i) sum = (sum ^ buffer[i]) * 1099511628211u;
  }
  close(fd);
  if (n < 0) return Say("error %d", errno);
  Say("%lu", sum);
}

static void Write(const char* path) {
  int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return Say("error %d", errno);
  Say(write(fd, "x", 1) == 1 ? "ok" : "short");
  close(fd);
}

static void Ids(void) {
  int signal = 0;
  prctl(PR_GET_PDEATHSIG, &signal);
  Say("pid=%d uid=%u gid=%u groups=%d sid=%d pdeathsig=%d\n", getpid(), getuid(), getgid(),
      getgroups(0, NULL), getsid(0), signal);
  for (int fd = 0; fd < 1000; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) Say("fd%d ", fd);
  }
  Say("\n");
  Read("/proc/self/status");
}

static void List(const char* path) {
  DIR* dir = opendir(path);
  if (dir == NULL) return Say("error %d", errno);
  for (struct dirent* e; (e = readdir(dir)) != NULL;) {
    if (e->d_name[0] != '.') Say("%s\n", e->d_name);
  }
  closedir(dir);
}

static void Loopback(void) {
  struct ifreq request = {0};
  strcpy(request.ifr_name, "lo");
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (ioctl(fd, SIOCGIFFLAGS, &request) != 0) Say("error %d", errno);
  Say(request.ifr_flags & IFF_UP ? "up" : "down");
  close(fd);
}

static void Port(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(80)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  SayOutcome("bind", bind(fd, (struct sockaddr*)&address, sizeof(address)));
  close(fd);
  int ping = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_ICMP);
  SayOutcome("ping", ping);
  close(ping);
}

static void ChildLook(void) {
  int mem = open("/proc/1/mem", O_RDONLY | O_CLOEXEC);
  SayOutcome("mem", mem);
  int exe = open("/proc/1/exe", O_RDONLY | O_CLOEXEC);
  SayOutcome("exe", exe);
  int fds = open("/proc/1/fd/4", O_RDONLY | O_CLOEXEC);
  SayOutcome("fd", fds);
  int root = open("/proc/1/root", O_RDONLY | O_CLOEXEC);
  SayOutcome("root", root);
  SayOutcome("ptrace", ptrace(PTRACE_SEIZE, 1, 0, 0));
  kill(1, SIGKILL);  // succeeds, and does nothing: PID 1 has no handler for it
  Say("alive\n");
}

static void Escape(void) {
  struct stat st;
  mkdir("/cell", 0755);
  int rc = chroot("/cell");
  for (int i = 0; i < 64 && rc == 0; ++i) rc = chdir("..");
  SayOutcome("chroot", rc);
  Say("own-root=%d\n", stat("./marker", &st) == 0);
  rc = chroot(".");
  SayOutcome("chroot-back", rc);
  int ns = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
  SayOutcome("setns", setns(ns, CLONE_NEWNS));
  SayOutcome("umount", umount2("/", MNT_DETACH));
  SayOutcome("umount-proc", umount2("/proc/kallsyms", MNT_DETACH));
  SayOutcome("mount", mount("x", "/proc", "tmpfs", 0, NULL));
  SayOutcome("open_tree", open_tree(AT_FDCWD, "/", OPEN_TREE_CLONE));
  // It may copy its mounts, but those of the copy are locked.
  SayOutcome("newns", unshare(CLONE_NEWNS));
  SayOutcome("newns-umount", umount2("/", MNT_DETACH));
  SayOutcome("newns-umount-proc", umount2("/proc/kallsyms", MNT_DETACH));
  // Descriptor 4 is a directory: `..` of it must not lead out.
  int up = openat(4, "../../../../..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct stat root;
  if (up < 0 || fstat(up, &st) != 0 || stat("/", &root) != 0) {
    Say("fd4=%d\n", errno);
  } else {
    Say("fd4=%s\n",
        st.st_ino == root.st_ino && st.st_dev == root.st_dev ? "own-root" : "ELSEWHERE");
  }
  SayOutcome("newuser", unshare(CLONE_NEWUSER | CLONE_NEWNS));
  SayOutcome("newuser-umount", umount2("/", MNT_DETACH));
}

static void Filter(void) {
  static struct sock_filter program[4096];
  ssize_t n = pread(5, program, sizeof(program), 0);
  if (n <= 0) return Say("error %d", errno);
  struct sock_fprog prog = {(unsigned short)((size_t)n / sizeof(program[0])), program};
  // Without no_new_privs: CAP_SYS_ADMIN in the sandbox's user namespace is enough.
  SayOutcome("install", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog));
  SayOutcome("mount", mount("x", "/proc", "tmpfs", 0, NULL));
  SayOutcome("newuser", unshare(CLONE_NEWUSER));
  SayOutcome("keyctl", syscall(SYS_keyctl, 0, 0, 0, 0, 0));
  SayOutcome("io_uring", syscall(SYS_io_uring_setup, 1, NULL));
  SayOutcome("getpid", syscall(SYS_getpid));
}

// What a command of the sandbox could do: in a child, which answers through a pipe.
static void InChild(void (*body)(void)) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return Say("error %d", errno);
  pid_t pid = fork();
  if (pid == 0) {
    body();
    _exit(write(fds[1], reply, reply_size) != (ssize_t)reply_size);
  }
  close(fds[1]);
  ssize_t n;
  while ((n = read(fds[0], reply + reply_size, sizeof(reply) - reply_size)) > 0) {
    reply_size += (size_t)n;
  }
  close(fds[0]);
  waitpid(pid, NULL, 0);
}

static void Do(char* line) {
  char* argument = strchr(line, ' ');
  if (argument != NULL) *argument++ = 0;
  if (strcmp(line, "read") == 0) return Read(argument);
  if (strcmp(line, "sum") == 0) return Sum(argument);
  if (strcmp(line, "write") == 0) return Write(argument);
  if (strcmp(line, "list") == 0) return List(argument);
  if (strcmp(line, "ids") == 0) return Ids();
  if (strcmp(line, "lo") == 0) return Loopback();
  if (strcmp(line, "port") == 0) return Port();
  if (strcmp(line, "child-look") == 0) return InChild(ChildLook);
  if (strcmp(line, "escape") == 0) return InChild(Escape);
  if (strcmp(line, "filter") == 0) return InChild(Filter);
  if (strcmp(line, "exit") == 0) exit(atoi(argument));
  if (strcmp(line, "link") == 0) {
    ssize_t n = readlink(argument, reply, sizeof(reply));
    if (n < 0) return Say("error %d", errno);
    reply_size = (size_t)n;
    return;
  }
  if (strcmp(line, "stat") == 0) {
    struct stat st;
    if (lstat(argument, &st) != 0) return Say("error %d", errno);
    return Say("%o %u %u", st.st_mode, st.st_uid, st.st_gid);
  }
  Say("unknown command %s", line);
}

int main(void) {
  fcntl(3, F_SETFL, 0);  // the node's listening sockets do not block
  for (;;) {
    int connection = accept4(3, NULL, NULL, SOCK_CLOEXEC);
    if (connection < 0) return 100;
    char line[4096];
    ssize_t n;
    while ((n = recv(connection, line, sizeof(line) - 1, 0)) > 0) {
      line[n] = 0;
      reply_size = 0;
      reply[0] = 0;  // what an empty answer is
      Do(line);
      if (send(connection, reply, reply_size == 0 ? 1 : reply_size, MSG_NOSIGNAL) < 0) break;
    }
    close(connection);
  }
}
