// Download and upload: bytes between a pipe and a file, in constant memory.
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "file_ops.h"

namespace esker {

namespace {

constexpr size_t kStep = 1 << 20;
constexpr uint32_t kMaxFrame = 8 << 20;
constexpr int kMaxLinks = 40;  // as the kernel has it
constexpr mode_t kModeBits = 07777;

void WaitFor(int from, int to) {
  pollfd fds[2] = {{from, POLLIN, 0}, {to, POLLOUT, 0}};
  ::poll(&fds[0], 1, -1);
  ::poll(&fds[1], 1, -1);
}

// Through a buffer, for what splice cannot do (sockets, some special file systems).
ssize_t MoveBuffered(int from, int to, size_t size) {
  static char buffer[64 * 1024];
  ssize_t got = ::read(from, buffer, std::min(size, sizeof(buffer)));
  for (ssize_t done = 0; done < got;) {
    ssize_t n = ::write(to, buffer + done, static_cast<size_t>(got - done));
    if (n > 0) done += n;
    if (n >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) return -1;
    pollfd wait = {to, POLLOUT, 0};
    ::poll(&wait, 1, -1);
  }
  return got;
}

bool ReadExactly(int fd, void* buffer, size_t size) {
  auto* to = static_cast<char*>(buffer);
  while (size > 0) {
    ssize_t n = ::read(fd, to, size);
    if (n > 0) {
      to += n;
      size -= static_cast<size_t>(n);
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
      return false;
    } else {
      pollfd wait = {fd, POLLIN, 0};
      ::poll(&wait, 1, -1);
    }
  }
  return true;
}

std::string DirectoryOf(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string TemporaryName() {
  uint64_t number = 0;
  (void)!::getrandom(&number, sizeof(number), 0);  // O_EXCL and link decide, not this
  char name[40];
  ::snprintf(name, sizeof(name), ".esker-upload-%016lx", static_cast<unsigned long>(number));
  return name;
}

// Gives a file without a name one. Linux 6.10 lets the opener do it directly, before that it takes
// a detour through /proc.
bool LinkFile(int fd, int directory, const std::string& name) {
  if (::linkat(fd, "", directory, name.c_str(), AT_EMPTY_PATH) == 0) return true;
  if (errno == EEXIST) return false;
  std::string path = "/proc/self/fd/" + std::to_string(fd);
  return ::linkat(AT_FDCWD, path.c_str(), directory, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

}  // namespace

bool FileCall::Copy(int from, int to, uint64_t limit, const std::string& path, uint64_t& moved) {
  bool splice_works = true;
  while (limit > 0) {
    size_t step = static_cast<size_t>(std::min<uint64_t>(kStep, limit));
    ssize_t n = splice_works ? ::splice(from, nullptr, to, nullptr, step, SPLICE_F_MOVE)
                             : MoveBuffered(from, to, step);
    if (n == 0) return true;
    if (n > 0) {
      moved += static_cast<uint64_t>(n);
      limit -= static_cast<uint64_t>(n);
    } else if (splice_works && (errno == EINVAL || errno == ENOSYS)) {
      splice_works = false;
    } else if (errno == EAGAIN) {
      WaitFor(from, to);
    } else if (errno != EINTR) {
      return Fail(errno, path);
    }
  }
  return true;
}

// An upload comes in frames, since a pipe also ends when the node dies in the middle.
bool FileCall::CopyFrames(int to, const std::string& path) {
  for (;;) {
    uint32_t length = 0;
    if (!ReadExactly(stream_, &length, sizeof(length))) return Fail(ECANCELED, path);
    if (length == 0) return true;
    if (length > kMaxFrame) return Fail(EPROTO, path);
    uint64_t before = result_.bytes;
    if (!Copy(stream_, to, length, path, result_.bytes)) return false;
    if (result_.bytes - before != length) return Fail(ECANCELED, path);
  }
}

bool FileCall::Read() {
  std::string path = Absolute(request_.path);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd.valid()) return Fail(errno, path);
  struct stat st;
  if (::fstat(fd.get(), &st) != 0) return Fail(errno, path);
  if (S_ISDIR(st.st_mode)) return Fail(EISDIR, path);
  if (!S_ISREG(st.st_mode)) return Fail(EINVAL, path);
  if (request_.offset > INT64_MAX) return Fail(EINVAL, path);
  if (request_.offset != 0 &&
      ::lseek(fd.get(), static_cast<off_t>(request_.offset), SEEK_SET) < 0) {
    return Fail(errno, path);
  }
  return Copy(fd.get(), stream_, request_.length, path, result_.bytes);
}

// Follows links at the end of the path by hand: the new file must be made beside what they lead to.
bool FileCall::FindTarget(const std::string& path, Target& target) {
  target.path = path;
  for (int i = 0; i <= kMaxLinks; ++i) {
    char link[4096];
    ssize_t size = ::readlink(target.path.c_str(), link, sizeof(link));
    if (size < 0) break;
    if (i == kMaxLinks) return Fail(ELOOP, path);
    std::string to(link, static_cast<size_t>(size));
    if (to.starts_with('/')) {
      target.path = to;
    } else {
      std::string directory = DirectoryOf(target.path);
      target.path = directory == "/" ? "/" + to : directory + "/" + to;
    }
  }
  target.directory = DirectoryOf(target.path);
  target.name = target.path.substr(target.path.rfind('/') + 1);
  if (target.name.empty() || target.name == "." || target.name == "..") {
    return Fail(EISDIR, target.path);
  }
  return true;
}

bool FileCall::Write() {
  std::string path = Absolute(request_.path);
  if (request_.path.ends_with('/')) return Fail(EISDIR, request_.path);
  if (request_.parents && !MakeParents(path)) return false;
  Target target;
  if (!FindTarget(path, target)) return false;
  UniqueFd directory(::open(target.directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) return Fail(errno, target.directory);
  struct stat st;
  target.exists = ::fstatat(directory.get(), target.name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0;
  if (!target.exists && errno != ENOENT) return Fail(errno, target.path);
  if (target.exists) {
    if (S_ISDIR(st.st_mode)) return Fail(EISDIR, target.path);
    if (!S_ISREG(st.st_mode)) return Fail(EINVAL, target.path);
    // Renaming over it would not ask whether the file itself may be written.
    if (::faccessat(directory.get(), target.name.c_str(), W_OK, 0) != 0) {
      return Fail(errno, target.path);
    }
    target.mode = st.st_mode & kModeBits;
    target.uid = st.st_uid;
    target.gid = st.st_gid;
    target.links = st.st_nlink;
  }
  Spool spool;
  if (OpenSpool(directory.get(), spool)) {
    bool done = WriteSpooled(target, directory.get(), spool);
    if (!spool.name.empty()) ::unlinkat(directory.get(), spool.name.c_str(), 0);
    return done;
  }
  if (target.exists && (errno == EACCES || errno == EPERM)) {
    // A file that the user may write in a directory that they may not.
    return WriteInPlace(target, directory.get(), stream_);
  }
  return Fail(errno, target.directory);
}

// False with errno set.
bool FileCall::OpenSpool(int directory, Spool& spool) {
  // Without a name a killed upload leaves nothing.
  spool.fd.reset(::openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (spool.fd.valid()) return true;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return false;
  std::string name = TemporaryName();
  spool.fd.reset(
      ::openat(directory, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (spool.fd.valid()) spool.name = name;
  return spool.fd.valid();
}

bool FileCall::WriteSpooled(const Target& target, int directory, Spool& spool) {
  if (!CopyFrames(spool.fd.get(), target.path)) return false;
  bool ours = target.uid == account_.uid || account_.uid == 0;
  if (!target.exists || (ours && target.links == 1)) {
    if (!ReplaceTarget(target, directory, spool)) return false;
  } else {
    // Replacing it would change its owner or part it from its other names.
    if (::lseek(spool.fd.get(), 0, SEEK_SET) < 0) return Fail(errno, target.path);
    if (!WriteInPlace(target, directory, spool.fd.get())) return false;
  }
  return Emit(directory, target.name, target.path) || Fail(errno, target.path);
}

bool FileCall::ReplaceTarget(const Target& target, int directory, Spool& spool) {
  int fd = spool.fd.get();
  mode_t mode = request_.mode != 0 ? request_.mode & kModeBits : 0644;  // 0666 less the umask
  if (target.exists) {
    mode = target.mode;
    // Before the mode, since it takes set-id bits away.
    if (::fchown(fd, target.uid, target.gid) != 0 && account_.uid == 0) {
      return Fail(errno, target.path);
    }
  }
  if (::fchmod(fd, mode) != 0) return Fail(errno, target.path);
  if (spool.name.empty()) {
    if (!target.exists) {
      if (LinkFile(fd, directory, target.name)) return true;
      if (errno != EEXIST) return Fail(errno, target.path);
    }
    std::string temporary = TemporaryName();
    if (!LinkFile(fd, directory, temporary)) return Fail(errno, target.path);
    spool.name = temporary;  // from here on it has to be removed
  }
  if (::renameat(directory, spool.name.c_str(), directory, target.name.c_str()) == 0) {
    spool.name.clear();
    return true;
  }
  // Something is mounted on it (/etc/resolv.conf often is): only its content can be replaced.
  if (errno != EBUSY) return Fail(errno, target.path);
  if (::lseek(fd, 0, SEEK_SET) < 0) return Fail(errno, target.path);
  return WriteInPlace(target, directory, fd);
}

bool FileCall::WriteInPlace(const Target& target, int directory, int from) {
  bool direct = from == stream_;
  UniqueFd to(::openat(directory, target.name.c_str(),
                       O_WRONLY | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!to.valid()) return Fail(errno, target.path);
  uint64_t copied = 0;
  if (!direct) return Copy(from, to.get(), UINT64_MAX, target.path, copied);
  if (!CopyFrames(to.get(), target.path)) return false;
  return Emit(directory, target.name, target.path) || Fail(errno, target.path);
}

}  // namespace esker
