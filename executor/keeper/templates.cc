#include "templates.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/io.h"
#include "base/socket.h"

namespace esker::keeper {
namespace {

Result<UniqueFd> NewTmpfs() {
  UniqueFd fs(fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!fs.valid()) return ErrnoError("open a tmpfs");
  if (fsconfig(fs.get(), FSCONFIG_SET_STRING, "mode", "0755", 0) != 0 ||
      fsconfig(fs.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    return ErrnoError("make a tmpfs");
  }
  UniqueFd mount(fsmount(fs.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOATIME));
  if (!mount.valid()) return ErrnoError("mount a tmpfs");
  return mount;
}

Status MakeReadOnly(int mount, uint64_t more) {
  mount_attr attr = {};
  attr.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | more;
  if (mount_setattr(mount, "", AT_EMPTY_PATH, &attr, sizeof(attr)) != 0) {
    return ErrnoError("make a template read-only");
  }
  return OkStatus();
}

Status MakeDirectory(int root, const std::string& path, mode_t mode = 0755) {
  if (mkdirat(root, path.c_str(), mode) != 0 || fchmodat(root, path.c_str(), mode, 0) != 0) {
    return ErrnoError("make directory " + path + " of a template");
  }
  return OkStatus();
}

Result<UniqueFd> MakeSkeleton() {
  ESKER_ASSIGN_OR_RETURN(UniqueFd root, NewTmpfs());
  for (const char* name : {"proc", "sys", "dev"}) {
    ESKER_RETURN_IF_ERROR(MakeDirectory(root.get(), name));
  }
  ESKER_RETURN_IF_ERROR(MakeReadOnly(root.get(), MOUNT_ATTR_NODEV));
  return root;
}

Result<UniqueFd> MakeDev() {
  ESKER_ASSIGN_OR_RETURN(UniqueFd root, NewTmpfs());
  static constexpr struct {
    const char* name;
    unsigned major, minor;
  } kNodes[] = {{"null", 1, 3},   {"zero", 1, 5},    {"full", 1, 7},
                {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};
  for (auto& node : kNodes) {
    if (mknodat(root.get(), node.name, S_IFCHR | 0666, makedev(node.major, node.minor)) != 0 ||
        fchmodat(root.get(), node.name, 0666, 0) != 0) {
      return ErrnoError(std::string("make device ") + node.name);
    }
  }
  static constexpr std::pair<const char*, const char*> kLinks[] = {
      {"ptmx", "pts/ptmx"},          {"fd", "/proc/self/fd"},       {"stdin", "/proc/self/fd/0"},
      {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"}, {"core", "/proc/kcore"}};
  for (auto& [name, target] : kLinks) {
    if (symlinkat(target, root.get(), name) != 0) {
      return ErrnoError(std::string("make link ") + name);
    }
  }
  for (const char* name : {"pts", "shm", "mqueue"}) {
    ESKER_RETURN_IF_ERROR(MakeDirectory(root.get(), name));
  }
  ESKER_RETURN_IF_ERROR(MakeReadOnly(root.get(), MOUNT_ATTR_NOEXEC));
  return root;
}

// A copy of one small file of the host's /sys; one that is not there is not there in sandboxes.
Status CopySysFile(int root, const std::string& path) {
  Result<std::string> text = ReadFileToString("/sys/" + path, 64 << 10);
  if (!text.ok()) return OkStatus();
  for (size_t slash = path.find('/'); slash != path.npos; slash = path.find('/', slash + 1)) {
    std::string parent = path.substr(0, slash);
    if (mkdirat(root, parent.c_str(), 0755) != 0 && errno != EEXIST) {
      return ErrnoError("make directory " + parent + " of a template");
    }
  }
  ESKER_ASSIGN_OR_RETURN(UniqueFd file, OpenFileAt(root, path, O_CREAT | O_WRONLY, 0444));
  return WriteFull(file.get(), text->data(), text->size());
}

// The real sysfs is large, shared by all, and has been a source of escapes. Programs want from it
// how many processors there are and little else.
Result<UniqueFd> MakeSys() {
  ESKER_ASSIGN_OR_RETURN(UniqueFd root, NewTmpfs());
  for (const char* path : {"devices/system/cpu/online", "devices/system/cpu/possible",
                           "devices/system/cpu/present", "devices/system/node/online",
                           "devices/system/node/possible", "kernel/mm/transparent_hugepage/enabled",
                           "kernel/mm/transparent_hugepage/hpage_pmd_size"}) {
    ESKER_RETURN_IF_ERROR(CopySysFile(root.get(), path));
  }
  for (const char* path : {"fs", "fs/cgroup", "block", "class", "class/net", "bus", "firmware"}) {
    ESKER_RETURN_IF_ERROR(MakeDirectory(root.get(), path));
  }
  ESKER_RETURN_IF_ERROR(MakeReadOnly(root.get(), MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC));
  return root;
}

// In a child: leaves only the given tmpfs in a new mount namespace. 0 or an errno.
int BecomeTemplate(int root) {
  // Any directory that is always there will do as a mount point on the way.
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      move_mount(root, "", AT_FDCWD, "/proc", MOVE_MOUNT_F_EMPTY_PATH) != 0 || fchdir(root) != 0 ||
      syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0) {
    return errno;
  }
  return 0;
}

Result<UniqueFd> MakeMountNamespace() {
  ESKER_ASSIGN_OR_RETURN(UniqueFd root, NewTmpfs());
  ESKER_RETURN_IF_ERROR(MakeReadOnly(root.get(), MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC));
  ESKER_ASSIGN_OR_RETURN(auto pair, SeqpacketPair());
  pid_t pid = fork();
  if (pid < 0) return ErrnoError("fork for the template mount namespace");
  if (pid == 0) {
    pair.first.reset();
    int error = BecomeTemplate(root.get());
    char byte;
    // The namespace must have a process until the parent has opened it.
    if (write(pair.second.get(), &error, sizeof(error)) > 0) {
      ssize_t ignored = read(pair.second.get(), &byte, 1);
      (void)ignored;
    }
    _exit(0);
  }
  pair.second.reset();
  int error = EIO;
  Result<size_t> n = ReadFull(pair.first.get(), &error, sizeof(error));
  Result<UniqueFd> ns = OpenFile("/proc/" + std::to_string(pid) + "/ns/mnt", O_RDONLY);
  pair.first.reset();
  waitpid(pid, nullptr, 0);
  if (!n.ok()) return std::move(n).status().Wrap("make the template mount namespace");
  if (error != 0) return Status::FromErrno(error, "make the template mount namespace");
  return ns;
}

}  // namespace

Result<Templates> MakeTemplates() {
  Templates templates;
  ESKER_ASSIGN_OR_RETURN(templates.mount_namespace, MakeMountNamespace());
  ESKER_ASSIGN_OR_RETURN(templates.skeleton, MakeSkeleton());
  ESKER_ASSIGN_OR_RETURN(templates.dev, MakeDev());
  ESKER_ASSIGN_OR_RETURN(templates.sys, MakeSys());
  return templates;
}

}  // namespace esker::keeper
