// esker-fault-fs: shows a directory at another place, and does wrong there what a file of rules
// says (fault_rules.h). A store, or a cache, that is slow, hangs, lies, or is full.
//
//   esker-fault-fs --backing DIR --rules FILE MOUNTPOINT      in the foreground, until unmounted
//
// Nothing is cached by the kernel, neither names nor data, so that every operation comes here.
#define FUSE_USE_VERSION 314
#include <dirent.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <fuse3/fuse_lowlevel.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "testing/fault_rules.h"

namespace esker::testing {
namespace {

struct OpenFile {
  int fd;
  std::string path;
};

// One per process: libfuse's callbacks carry nothing else that is as easy to reach.
struct FileSystem {
  int root = -1;
  std::unique_ptr<FaultRules> rules;
  std::mutex mutex;            // guards `seen`
  std::set<std::string> seen;  // names made here, or old enough once
};
FileSystem& Fs() {
  static FileSystem fs;
  return fs;
}

int Done(int result) { return result < 0 ? -errno : 0; }
// "" is the root itself.
const char* Below(const char* path) { return path[1] == '\0' ? "." : path + 1; }
OpenFile* Opened(const fuse_file_info* info) { return reinterpret_cast<OpenFile*>(info->fh); }

bool Ended() {
  fuse_context* context = fuse_get_context();
  return context == nullptr || fuse_session_exited(fuse_get_session(context->fuse)) != 0;
}

// Waits as the rules say; 0, or the error (negative) that the operation ends with.
int Suffer(FaultOperation operation, const std::string& path, Faults* out = nullptr) {
  Faults faults = Fs().rules->For(operation, path);
  if (faults.delay_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(faults.delay_ms));
  while (faults.hang && !Ended()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    faults = Fs().rules->For(operation, path);
  }
  if (out != nullptr) *out = faults;
  return -faults.error;
}

// Whether a name that somebody else made may be seen already.
bool Visible(const std::string& path, const struct stat& status) {
  const int delay_ms = Fs().rules->For(FaultOperation::kNames, path).delay_ms;
  if (delay_ms == 0) return true;
  std::lock_guard lock(Fs().mutex);
  if (Fs().seen.contains(path)) return true;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const int64_t age_ms = (now.tv_sec - status.st_ctim.tv_sec) * 1000 +
                         (now.tv_nsec - status.st_ctim.tv_nsec) / 1'000'000;
  if (age_ms < delay_ms) return false;
  Fs().seen.insert(path);
  return true;
}

bool NameVisible(const char* path) {
  struct stat status {};
  if (::fstatat(Fs().root, Below(path), &status, AT_SYMLINK_NOFOLLOW) != 0) return true;
  return S_ISDIR(status.st_mode) || Visible(Below(path), status);
}

int Made(const char* path, int result) {
  if (result < 0) return -errno;
  std::lock_guard lock(Fs().mutex);
  Fs().seen.insert(Below(path));
  return 0;
}

int Removed(const char* path, int result) {
  if (result < 0) return -errno;
  std::lock_guard lock(Fs().mutex);
  Fs().seen.erase(Below(path));
  return 0;
}

void* Init(fuse_conn_info*, fuse_config* config) {
  config->use_ino = 1;
  config->nullpath_ok = 1;
  config->hard_remove = 1;
  config->attr_timeout = config->entry_timeout = config->negative_timeout = 0;
  return nullptr;
}

int GetAttributes(const char* path, struct stat* out, fuse_file_info* info) {
  if (info != nullptr) return Done(::fstat(Opened(info)->fd, out));
  if (int error = Suffer(FaultOperation::kLookup, Below(path)); error != 0) return error;
  if (::fstatat(Fs().root, Below(path), out, AT_SYMLINK_NOFOLLOW) != 0) return -errno;
  return S_ISDIR(out->st_mode) || Visible(Below(path), *out) ? 0 : -ENOENT;
}

int ReadLink(const char* path, char* out, size_t size) {
  ssize_t n = ::readlinkat(Fs().root, Below(path), out, size - 1);
  if (n < 0) return -errno;
  out[n] = '\0';
  return 0;
}

int MakeDirectory(const char* path, mode_t mode) {
  if (int error = Suffer(FaultOperation::kCreate, Below(path)); error != 0) return error;
  return Made(path, ::mkdirat(Fs().root, Below(path), mode));
}

int Unlink(const char* path) {
  if (int error = Suffer(FaultOperation::kUnlink, Below(path)); error != 0) return error;
  return Removed(path, ::unlinkat(Fs().root, Below(path), 0));
}

int RemoveDirectory(const char* path) {
  if (int error = Suffer(FaultOperation::kUnlink, Below(path)); error != 0) return error;
  return Done(::unlinkat(Fs().root, Below(path), AT_REMOVEDIR));
}

int SymbolicLink(const char* target, const char* path) {
  if (int error = Suffer(FaultOperation::kCreate, Below(path)); error != 0) return error;
  return Made(path, ::symlinkat(target, Fs().root, Below(path)));
}

int Rename(const char* from, const char* to, unsigned flags) {
  if (int error = Suffer(FaultOperation::kLink, Below(to)); error != 0) return error;
  if (flags != 0) return -EINVAL;
  return Made(to, ::renameat(Fs().root, Below(from), Fs().root, Below(to)));
}

int Link(const char* from, const char* to) {
  if (int error = Suffer(FaultOperation::kLink, Below(to)); error != 0) return error;
  return Made(to, ::linkat(Fs().root, Below(from), Fs().root, Below(to), 0));
}

int ChangeMode(const char* path, mode_t mode, fuse_file_info*) {
  return Done(::fchmodat(Fs().root, Below(path), mode, 0));
}

int Truncate(const char* path, off_t size, fuse_file_info* info) {
  const std::string name = info != nullptr ? Opened(info)->path : Below(path);
  if (int error = Suffer(FaultOperation::kWrite, name); error != 0) return error;
  if (info != nullptr) return Done(::ftruncate(Opened(info)->fd, size));
  int fd = ::openat(Fs().root, Below(path), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  int result = Done(::ftruncate(fd, size));
  ::close(fd);
  return result;
}

int OpenHandle(const char* path, int flags, mode_t mode, fuse_file_info* info) {
  int fd = ::openat(Fs().root, Below(path), flags | O_CLOEXEC, mode);
  if (fd < 0) return -errno;
  info->fh = reinterpret_cast<uint64_t>(new OpenFile{fd, Below(path)});
  info->direct_io = 1;
  return 0;
}

int Create(const char* path, mode_t mode, fuse_file_info* info) {
  if (int error = Suffer(FaultOperation::kCreate, Below(path)); error != 0) return error;
  int result = OpenHandle(path, info->flags | O_CREAT, mode, info);
  return result < 0 ? result : Made(path, 0);
}

int Open(const char* path, fuse_file_info* info) {
  if (int error = Suffer(FaultOperation::kOpen, Below(path)); error != 0) return error;
  if (!NameVisible(path)) return -ENOENT;
  return OpenHandle(path, info->flags, 0, info);
}

int Read(const char*, char* out, size_t size, off_t offset, fuse_file_info* info) {
  Faults faults;
  if (int error = Suffer(FaultOperation::kRead, Opened(info)->path, &faults); error != 0) {
    return error;
  }
  if (faults.make_short && size > 1) size /= 2;
  if (faults.cut) {
    struct stat status {};
    if (::fstat(Opened(info)->fd, &status) != 0) return -errno;
    if (offset >= status.st_size / 2) return 0;
    size = std::min<size_t>(size, static_cast<size_t>(status.st_size / 2 - offset));
  }
  ssize_t n = ::pread(Opened(info)->fd, out, size, offset);
  if (n < 0) return -errno;
  if (faults.flip && n > 0) out[n / 2] ^= 0x10;
  return static_cast<int>(n);
}

int Write(const char*, const char* data, size_t size, off_t offset, fuse_file_info* info) {
  Faults faults;
  if (int error = Suffer(FaultOperation::kWrite, Opened(info)->path, &faults); error != 0) {
    return error;
  }
  size_t count = size;
  if ((faults.make_short || faults.cut) && count > 1) count /= 2;
  std::string changed;
  if (faults.flip && count > 0) {
    changed.assign(data, count);
    changed[count / 2] ^= 0x10;
    data = changed.data();
  }
  ssize_t n = ::pwrite(Opened(info)->fd, data, count, offset);
  if (n < 0) return -errno;
  return static_cast<int>(faults.cut ? size : static_cast<size_t>(n));
}

int Flush(const char*, fuse_file_info*) { return 0; }

int Release(const char*, fuse_file_info* info) {
  ::close(Opened(info)->fd);
  delete Opened(info);
  return 0;
}

int Sync(const char*, int data_only, fuse_file_info* info) {
  if (int error = Suffer(FaultOperation::kSync, Opened(info)->path); error != 0) return error;
  return Done(data_only != 0 ? ::fdatasync(Opened(info)->fd) : ::fsync(Opened(info)->fd));
}

int OpenDirectory(const char* path, fuse_file_info* info) {
  return OpenHandle(path, O_RDONLY | O_DIRECTORY, 0, info);
}

int ReadDirectory(const char*, void* buffer, fuse_fill_dir_t fill, off_t, fuse_file_info* info,
                  fuse_readdir_flags) {
  const std::string& path = Opened(info)->path;
  if (int error = Suffer(FaultOperation::kList, path); error != 0) return error;
  int fd = ::openat(Opened(info)->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* directory = fd < 0 ? nullptr : ::fdopendir(fd);
  if (directory == nullptr) return -errno;
  while (const dirent* entry = ::readdir(directory)) {
    struct stat status {};
    if (::fstatat(::dirfd(directory), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    const std::string name = (path == "." ? "" : path + "/") + entry->d_name;
    if (!S_ISDIR(status.st_mode) && !Visible(name, status)) continue;
    fill(buffer, entry->d_name, &status, 0, fuse_fill_dir_flags{});
  }
  ::closedir(directory);
  return 0;
}

int StatFs(const char*, struct statvfs* out) { return Done(::fstatvfs(Fs().root, out)); }

int SetTimes(const char* path, const timespec times[2], fuse_file_info* info) {
  if (info != nullptr) return Done(::futimens(Opened(info)->fd, times));
  return Done(::utimensat(Fs().root, Below(path), times, AT_SYMLINK_NOFOLLOW));
}

fuse_operations Operations() {
  fuse_operations operations{};
  operations.init = Init;
  operations.getattr = GetAttributes;
  operations.readlink = ReadLink;
  operations.mkdir = MakeDirectory;
  operations.unlink = Unlink;
  operations.rmdir = RemoveDirectory;
  operations.symlink = SymbolicLink;
  operations.rename = Rename;
  operations.link = Link;
  operations.chmod = ChangeMode;
  operations.truncate = Truncate;
  operations.open = Open;
  operations.create = Create;
  operations.read = Read;
  operations.write = Write;
  operations.flush = Flush;
  operations.release = Release;
  operations.fsync = Sync;
  operations.opendir = OpenDirectory;
  operations.readdir = ReadDirectory;
  operations.releasedir = Release;
  operations.fsyncdir = Sync;
  operations.statfs = StatFs;
  operations.utimens = SetTimes;
  return operations;
}

int Run(const std::string& backing, const std::string& rules, std::string mountpoint) {
  ::umask(0);
  Fs().root = ::open(backing.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (Fs().root < 0) {
    std::fprintf(stderr, "esker-fault-fs: open %s: %s\n", backing.c_str(), std::strerror(errno));
    return 1;
  }
  Fs().rules = std::make_unique<FaultRules>(rules);
  // Many threads: those that hang or wait must not hold up the others.
  std::string arguments[] = {"esker-fault-fs", std::move(mountpoint), "-f", "-o",
                             "max_threads=256,max_idle_threads=256,fsname=esker-fault-fs"};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  const fuse_operations operations = Operations();
  return fuse_main(static_cast<int>(argv.size()), argv.data(), &operations, nullptr);
}

}  // namespace
}  // namespace esker::testing

int main(int argc, char** argv) {
  std::string backing, rules, mountpoint;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--backing" && i + 1 < argc) {
      backing = argv[++i];
    } else if (word == "--rules" && i + 1 < argc) {
      rules = argv[++i];
    } else if (mountpoint.empty() && !word.starts_with("-")) {
      mountpoint = word;
    } else {
      backing.clear();
      break;
    }
  }
  if (backing.empty() || rules.empty() || mountpoint.empty()) {
    std::fprintf(stderr, "usage: esker-fault-fs --backing DIR --rules FILE MOUNTPOINT\n");
    return 2;
  }
  return esker::testing::Run(backing, rules, mountpoint);
}
