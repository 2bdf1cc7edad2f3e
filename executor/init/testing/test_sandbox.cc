#include "test_sandbox.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/id.h"
#include "base/io.h"
#include "base/socket.h"

namespace esker {
namespace {

constexpr char kBusybox[] = "/bin/busybox";
constexpr uid_t kFirstId = 0x30000000;
constexpr int kRange = 65536;

// Refuses sethostname with EPERM and allows all else: enough to see that it is installed.
Result<UniqueFd> MakeFilter() {
  const sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sethostname, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  UniqueFd fd(::memfd_create("filter", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoError("make memfd");
  ESKER_RETURN_IF_ERROR(WriteFull(fd.get(), program, sizeof(program)));
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

// As the keeper keeps it: a memory file that nobody in the sandbox may read.
Result<UniqueFd> MakeProgram(const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(std::string program, ReadFileToString(path));
  UniqueFd fd(::memfd_create("esker-init", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoError("make memfd");
  ESKER_RETURN_IF_ERROR(WriteFull(fd.get(), program.data(), program.size()));
  ::fchmod(fd.get(), 0111);
  // Executing needs that nobody has it open for writing.
  return OpenFile("/proc/self/fd/" + std::to_string(fd.get()), O_RDONLY);
}

[[noreturn]] void Die(const char* step) {
  std::fprintf(stderr, "test sandbox: %s: %s\n", step, std::strerror(errno));
  ::_exit(99);
}
void Must(bool ok, const char* step) {
  if (!ok) Die(step);
}

void MakeFile(const char* path, const char* text) {
  int fd = ::open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  Must(fd >= 0 && ::write(fd, text, std::strlen(text)) >= 0, path);
  ::close(fd);
}

void MakeDirectory(const char* path, mode_t mode, uid_t owner) {
  Must(::mkdir(path, 0755) == 0 || errno == EEXIST, path);
  Must(::chown(path, kFirstId + owner, kFirstId + owner) == 0 && ::chmod(path, mode) == 0, path);
}

// In the new mount namespace, as host root. The current directory becomes the sandbox's root.
void BuildRoot(const std::string& root, uint64_t bytes) {
  Must(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "make mounts private");
  std::string options = "mode=0755,uid=" + std::to_string(kFirstId) +
                        ",gid=" + std::to_string(kFirstId) + ",size=" + std::to_string(bytes);
  Must(::mount("tmpfs", root.c_str(), "tmpfs", MS_NOSUID, options.c_str()) == 0, "mount root");
  Must(::chdir(root.c_str()) == 0, "enter root");
  for (const char* name : {"bin", "etc", "proc", "dev", "dev/pts", "home", "root"}) {
    MakeDirectory(name, 0755, 0);
  }
  MakeDirectory("tmp", 01777, 0);
  MakeDirectory("home/user", 0755, 1000);
  MakeFile("etc/passwd",
           "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/ash\n"
           "other:x:1001:1001::/:/bin/sh\n");
  MakeFile("etc/group", "root:x:0:\nuser:x:1000:\nwheel:x:10:root,user\naudio:x:29:user\n");
  Must(::mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0,
       "mount proc");
  Must(::mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
               "newinstance,ptmxmode=0666,mode=0620") == 0,
       "mount devpts");
  for (const char* name : {"null", "zero", "tty"}) {
    std::string to = std::string("dev/") + name;
    MakeFile(to.c_str(), "");
    Must(::mount(("/" + to).c_str(), to.c_str(), nullptr, MS_BIND, nullptr) == 0, to.c_str());
  }
}

void InstallBusybox(const std::string& busybox) {
  int fd = ::open("bin/busybox", O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
  Must(fd >= 0 && WriteFull(fd, busybox.data(), busybox.size()).ok(), "copy busybox");
  ::close(fd);
  pid_t pid = ::fork();
  if (pid == 0) {
    Must(::chroot(".") == 0, "chroot");
    ::execl("/bin/busybox", "busybox", "--install", "-s", "/bin", nullptr);
    Die("install busybox");
  }
  int status = -1;
  Must(::waitpid(pid, &status, 0) == pid && status == 0, "install busybox");
}

bool WriteMaps(pid_t pid) {
  std::string directory = "/proc/" + std::to_string(pid) + "/";
  std::string map = "0 " + std::to_string(kFirstId) + " " + std::to_string(kRange);
  return WriteStringToFile(directory + "uid_map", map).ok() &&
         WriteStringToFile(directory + "gid_map", map).ok();
}

}  // namespace

std::string TestSandbox::WhyNot() {
  if (::geteuid() != 0) return "building a sandbox needs root";
  if (!PathExists(kBusybox)) return "needs the package busybox-static";
  return "";
}

Result<std::unique_ptr<TestSandbox>> TestSandbox::Start(const Options& options) {
  std::unique_ptr<TestSandbox> sandbox(new TestSandbox);
  ESKER_ASSIGN_OR_RETURN(TempDir directory, TempDir::Create());
  sandbox->directory_ = std::make_unique<TempDir>(std::move(directory));
  sandbox->socket_path_ = sandbox->directory_->path() + "/init.sock";
  sandbox->name_ = RandomId("esker-init-test");
  ESKER_ASSIGN_OR_RETURN(sandbox->cgroups_, CgroupRoot::Open(sandbox->name_));
  ESKER_RETURN_IF_ERROR(sandbox->cgroups_->Create(kId, options.limits, kFirstId, kFirstId));
  ESKER_ASSIGN_OR_RETURN(sandbox->listen_, ListenSeqpacket(sandbox->socket_path_));
  UniqueFd filter;
  if (options.with_filter) {
    ESKER_ASSIGN_OR_RETURN(filter, MakeFilter());
  }
  ESKER_RETURN_IF_ERROR(sandbox->Launch(options, filter.get()));
  return sandbox;
}

Status TestSandbox::Launch(const Options& options, int filter) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd program, MakeProgram(options.init_binary));
  ESKER_ASSIGN_OR_RETURN(std::string busybox, ReadFileToString(kBusybox));
  ESKER_ASSIGN_OR_RETURN(CgroupEntryFds entry, cgroups_->OpenEntry(kId));
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return ErrnoError("pair");
  UniqueFd ours(pair[0]), theirs(pair[1]);
  std::string root = directory_->path() + "/root";
  ESKER_RETURN_IF_ERROR(MakeDirectories(root));

  clone_args args = {};
  args.flags =
      CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_INTO_CGROUP;
  args.exit_signal = SIGCHLD;
  args.cgroup = static_cast<uint64_t>(entry.unified.get());
  init_pid_ = static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof(args)));
  if (init_pid_ == 0) {
    ours.reset();
    for (UniqueFd& tasks : entry.tasks) Must(::write(tasks.get(), "0", 1) == 1, "enter cgroup");
    BuildRoot(root, options.tmpfs_bytes);
    InstallBusybox(busybox);
    Must(::mount(".", "/", nullptr, MS_MOVE, nullptr) == 0 && ::chroot(".") == 0, "chroot");
    Must(::unshare(CLONE_NEWUSER) == 0, "unshare user namespace");
    char byte = 'u';
    Must(::write(theirs.get(), &byte, 1) == 1 && ::read(theirs.get(), &byte, 1) == 1, "maps");
    Must(::setresgid(0, 0, 0) == 0 && ::setresuid(0, 0, 0) == 0, "become root");
    int high[4] = {::fcntl(listen_.get(), F_DUPFD_CLOEXEC, 20),
                   ::fcntl(entry.unified.get(), F_DUPFD_CLOEXEC, 20),
                   filter < 0 ? -1 : ::fcntl(filter, F_DUPFD_CLOEXEC, 20),
                   ::fcntl(program.get(), F_DUPFD_CLOEXEC, 20)};
    ::close_range(3, 19, 0);
    Must(::dup2(high[0], 3) == 3, "listen");
    if (options.with_cgroup) Must(::dup2(high[1], 4) == 4, "cgroup");
    if (filter >= 0) Must(::dup2(high[2], 5) == 5, "filter");
    char name[] = "esker-init";
    char without[] = "--without-filter";
    char* argv[] = {name, filter < 0 ? without : nullptr, nullptr};
    char* env[] = {nullptr};
    ::syscall(SYS_execveat, high[3], "", argv, env, AT_EMPTY_PATH);
    Die("execute init");
  }
  if (init_pid_ < 0) return ErrnoError("clone a sandbox");
  theirs.reset();
  char byte;
  if (::read(ours.get(), &byte, 1) != 1) return InternalError("the sandbox could not be built");
  if (!WriteMaps(init_pid_)) return InternalError("the id maps could not be written");
  if (::write(ours.get(), &byte, 1) != 1) return ErrnoError("tell the sandbox");
  // Returns when init has been executed or it failed.
  if (::read(ours.get(), &byte, 1) != 0) return InternalError("the sandbox could not be built");
  listen_.reset();  // init's own descriptor is the only one now
  cgroup_ = std::move(entry.unified);
  return OkStatus();
}

TestSandbox::~TestSandbox() {
  if (cgroups_ != nullptr) (void)Stop();  // a test that cares calls it
}

Status TestSandbox::Stop() {
  if (cgroups_ == nullptr) return OkStatus();
  ESKER_RETURN_IF_ERROR(cgroups_->KillAll(kId, 10'000));
  if (init_pid_ > 0) ::waitpid(init_pid_, nullptr, 0);
  init_pid_ = -1;
  ESKER_RETURN_IF_ERROR(cgroups_->Remove(kId));
  ESKER_RETURN_IF_ERROR(cgroups_->Close());
  cgroups_ = nullptr;
  return directory_->Remove();
}

Result<int> TestSandbox::WaitInit() {
  int status = 0;
  if (::waitpid(init_pid_, &status, 0) != init_pid_) return ErrnoError("wait for init");
  init_pid_ = -1;
  return status;
}

size_t TestSandbox::CountInitFds() const {
  auto names = ListDirectory("/proc/" + std::to_string(init_pid_) + "/fd");
  return names.ok() ? names->size() : 0;
}

size_t TestSandbox::CountChildren() const {
  std::string pid = std::to_string(init_pid_);
  std::string path = "/proc/" + pid + "/task/" + pid + "/children";
  auto text = ReadFileToString(path);
  size_t count = 0;
  for (char c : text.ok() ? *text : "") count += c == ' ' ? 1 : 0;
  return count;
}

size_t TestSandbox::CountProcesses() const {
  std::string directory = "/proc/self/fd/" + std::to_string(cgroup_.get()) + "/";
  auto names = ListDirectory(directory);
  size_t count = 0;
  auto add = [&](const std::string& path) {
    auto text = ReadFileToString(path);
    for (char c : text.ok() ? *text : "") count += c == '\n' ? 1 : 0;
  };
  add(directory + "cgroup.procs");
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>{}) {
    if (name.starts_with("c-")) add(directory + name + "/cgroup.procs");
  }
  return count;
}

size_t TestSandbox::CountCommandCgroups() const {
  auto names = ListDirectory("/proc/self/fd/" + std::to_string(cgroup_.get()));
  size_t count = 0;
  if (!names.ok()) return SIZE_MAX;
  for (const std::string& name : *names) count += name.starts_with("c-") ? 1 : 0;
  return count;
}

uint64_t TestSandbox::AnonymousBytes() const {
  auto text = ReadFileToString("/proc/" + std::to_string(init_pid_) + "/smaps_rollup");
  size_t at = text.ok() ? text->find("Anonymous:") : std::string::npos;
  return at == std::string::npos ? 0 : std::strtoull(text->c_str() + at + 10, nullptr, 10) * 1024;
}

}  // namespace esker
