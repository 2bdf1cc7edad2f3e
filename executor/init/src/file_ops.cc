// Stat, list, make, remove, rename, and what all calls share.
#include "file_ops.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "protocol.h"

namespace esker {

using init_protocol::Type;

namespace {

constexpr uint32_t kMaxDepth = 256;
// Deeper trees are flattened while they are removed, so that descriptors suffice for any depth.
constexpr int kMaxRemovalDepth = 64;
constexpr mode_t kModeBits = 07777;

char TypeCharacter(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR:
      return 'd';
    case S_IFLNK:
      return 'l';
    case S_IFCHR:
      return 'c';
    case S_IFBLK:
      return 'b';
    case S_IFIFO:
      return 'p';
    case S_IFSOCK:
      return 's';
    default:
      return 'f';
  }
}

std::string Join(const std::string& directory, const std::string& name) {
  return directory.ends_with('/') ? directory + name : directory + "/" + name;
}

std::string BaseName(const std::string& path) {
  size_t slash = path.rfind('/');
  return path == "/" || slash == path.npos ? path : path.substr(slash + 1);
}

// Up to `limit` + 1 names, so that the caller sees that there are more. False with errno set.
bool ReadNames(int fd, size_t limit, std::vector<std::string>& names) {
  int copy = ::openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return false;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::fdopendir(copy), ::closedir);
  while (names.size() <= limit) {
    errno = 0;
    dirent* entry = ::readdir(dir.get());
    if (entry == nullptr) return errno == 0;
    std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return true;
}

template <typename Id, typename Lookup>
const std::string& Cached(std::unordered_map<Id, std::string>& cache, Id id, Lookup lookup) {
  auto found = cache.find(id);
  if (found == cache.end()) {
    if (cache.size() > 1000) cache.clear();
    found = cache.emplace(id, lookup(id)).first;
  }
  return found->second;
}

}  // namespace

FileCall::FileCall(const InitFileRequest& request, Accounts accounts, Account account, int stream,
                   int socket)
    : request_(request),
      accounts_(std::move(accounts)),
      account_(std::move(account)),
      stream_(stream),
      socket_(socket) {}

void FileCall::Run() {
  switch (request_.op) {
    case InitFileOp::kRead:
      Read();
      break;
    case InitFileOp::kWrite:
      Write();
      break;
    case InitFileOp::kStat:
      Stat();
      break;
    case InitFileOp::kList:
      List();
      break;
    case InitFileOp::kMakeDir:
      MakeDirectory();
      break;
    case InitFileOp::kRemove:
      Remove();
      break;
    case InitFileOp::kRename:
      Rename();
      break;
    default:
      Fail(ENOSYS, request_.path);
  }
  FlushEntries();
  WireWriter writer;
  writer.Put<uint8_t>(static_cast<uint8_t>(Type::kReply));
  init_protocol::PutError(writer, OkStatus());
  init_protocol::PutTail(writer, result_);
  ::send(socket_, writer.data().data(), writer.size(), MSG_NOSIGNAL);
}

bool FileCall::Fail(int error, const std::string& path) {
  result_.error_number = error;
  result_.error_path = path.substr(0, 4096);
  return false;
}

// Without trailing slashes, which would make the kernel follow a link.
std::string FileCall::Absolute(const std::string& path) const {
  std::string out = path.starts_with('/') ? path : Join(account_.home, path);
  while (out.size() > 1 && out.ends_with('/')) out.pop_back();
  return out;
}

// Adds one entry; false (without Fail) if it is gone or cannot be looked at.
bool FileCall::Emit(int directory, const std::string& name, const std::string& path) {
  struct stat st;
  if (::fstatat(directory, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return false;
  InitFileInfo info;
  info.name = BaseName(path);
  info.path = path;
  info.type = static_cast<uint8_t>(TypeCharacter(st.st_mode));
  info.mode = st.st_mode & kModeBits;
  info.uid = st.st_uid;
  info.gid = st.st_gid;
  info.user = Cached(user_names_, st.st_uid, [&](uid_t id) { return accounts_.UserName(id); });
  info.group = Cached(group_names_, st.st_gid, [&](gid_t id) { return accounts_.GroupName(id); });
  info.size = static_cast<uint64_t>(st.st_size);
  info.mtime_ns = int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec;
  if (info.type == 'l') {
    char target[4096];
    ssize_t size = ::readlinkat(directory, name.c_str(), target, sizeof(target));
    if (size > 0) info.link_target.assign(target, static_cast<size_t>(size));
  }
  init_protocol::Put(entries_, info);
  ++entry_count_;
  ++emitted_;
  if (entries_.size() >= init_protocol::kChunkBytes) FlushEntries();
  return true;
}

void FileCall::FlushEntries() {
  if (entry_count_ == 0) return;
  WireWriter writer;
  writer.Put<uint8_t>(static_cast<uint8_t>(Type::kFileEntries));
  writer.Put<uint32_t>(entry_count_);
  writer.PutRaw(entries_.data());
  ::send(socket_, writer.data().data(), writer.size(), MSG_NOSIGNAL);
  entries_ = {};
  entry_count_ = 0;
}

bool FileCall::Stat() {
  std::string path = Absolute(request_.path);
  return Emit(AT_FDCWD, path, path) || Fail(errno, path);
}

bool FileCall::List() {
  std::string path = Absolute(request_.path);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return Fail(errno, path);
  return ListDirectory(fd.get(), path, std::clamp(request_.depth, 1U, kMaxDepth));
}

bool FileCall::ListDirectory(int fd, const std::string& path, uint32_t depth) {
  size_t left = request_.limit > emitted_ ? request_.limit - emitted_ : 0;
  std::vector<std::string> names;
  if (!ReadNames(fd, left, names)) return Fail(errno, path);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (emitted_ >= request_.limit) {
      result_.truncated = true;
      return true;
    }
    std::string child_path = Join(path, name);
    if (!Emit(fd, name, child_path) || depth <= 1) continue;
    UniqueFd child(::openat(fd, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    // Not a directory, or one that the user may not read: it is listed, its content is not.
    if (!child.valid()) continue;
    if (!ListDirectory(child.get(), child_path, depth - 1)) return false;
    if (result_.truncated) return true;
  }
  return true;
}

bool FileCall::MakeParents(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != path.npos; slash = path.find('/', slash + 1)) {
    std::string parent = path.substr(0, slash);
    struct stat st;
    if (::stat(parent.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) continue;
    if (::mkdir(parent.c_str(), 0777) != 0 && errno != EEXIST) return Fail(errno, parent);
  }
  return true;
}

bool FileCall::MakeDirectory() {
  std::string path = Absolute(request_.path);
  if (request_.parents && !MakeParents(path)) return false;
  if (::mkdir(path.c_str(), 0777) == 0) {
    // Exactly the mode asked for, past the umask.
    if (request_.mode != 0 && ::chmod(path.c_str(), request_.mode & kModeBits) != 0) {
      return Fail(errno, path);
    }
  } else {
    int error = errno;
    struct stat st;
    bool there = error == EEXIST && ::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
    if (!there || !request_.parents) return Fail(error, path);
  }
  return Emit(AT_FDCWD, path, path) || Fail(errno, path);
}

bool FileCall::Rename() {
  std::string from = Absolute(request_.path);
  std::string to = Absolute(request_.to_path);
  struct stat st;
  // Before parents are made: a call that cannot succeed leaves nothing.
  if (::lstat(from.c_str(), &st) != 0) return Fail(errno, from);
  if (request_.parents && !MakeParents(to)) return false;
  if (::rename(from.c_str(), to.c_str()) != 0) return Fail(errno, to);
  return Emit(AT_FDCWD, to, to) || Fail(errno, to);
}

bool FileCall::Remove() {
  std::string path = Absolute(request_.path);
  if (path == "/") return Fail(EBUSY, path);
  if (::unlink(path.c_str()) == 0) return true;
  if (errno != EISDIR && errno != EPERM) return Fail(errno, path);
  if (::rmdir(path.c_str()) == 0) return true;
  if (!request_.recursive || (errno != ENOTEMPTY && errno != EEXIST)) return Fail(errno, path);
  UniqueFd root(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!root.valid()) return Fail(errno, path);
  removal_root_ = root.get();
  // Flattening adds names at the top, so look again until it is empty.
  while (RemoveContents(root.get(), path, kMaxRemovalDepth)) {
    if (::rmdir(path.c_str()) == 0) return true;
    if (errno != ENOTEMPTY && errno != EEXIST) return Fail(errno, path);
  }
  return false;
}

bool FileCall::RemoveContents(int fd, const std::string& path, int depth) {
  constexpr size_t kBatch = 4096;
  std::vector<std::string> names;
  do {
    names.clear();
    if (!ReadNames(fd, kBatch, names)) return Fail(errno, path);
    for (const std::string& name : names) {
      if (::unlinkat(fd, name.c_str(), 0) == 0 || errno == ENOENT) continue;
      if (errno != EISDIR && errno != EPERM) return Fail(errno, Join(path, name));
      if (!RemoveDirectory(fd, name, Join(path, name), depth)) return false;
    }
  } while (names.size() > kBatch);
  return true;
}

bool FileCall::RemoveDirectory(int parent, const std::string& name, const std::string& path,
                               int depth) {
  if (::unlinkat(parent, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return true;
  if (errno != ENOTEMPTY && errno != EEXIST) return Fail(errno, path);
  if (depth == 0) {
    std::string flat =
        ".esker-removing-" + std::to_string(::getpid()) + "-" + std::to_string(flattened_++);
    return ::renameat(parent, name.c_str(), removal_root_, flat.c_str()) == 0 || Fail(errno, path);
  }
  UniqueFd fd(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return errno == ENOENT || Fail(errno, path);
  if (!RemoveContents(fd.get(), path, depth - 1)) return false;
  if (::unlinkat(parent, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return true;
  return Fail(errno, path);
}

}  // namespace esker
