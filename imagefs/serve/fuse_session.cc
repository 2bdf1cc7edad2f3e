#include "fuse_session.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>

#include "base/io.h"
#include "base/log.h"
#include "session_state.h"

namespace esker {
namespace {

// Not in the header of Debian 12 (Linux 6.9).
constexpr uint64_t kHasResend = 1ull << 39;
// A request's arguments are small: names, ranges, lists of forgotten nodes. Larger than what we
// announce as max_write, as the kernel demands.
constexpr size_t kRequestBufferSize = 64 * 1024;
constexpr uint32_t kMaxWrite = 4096;
// Reads ahead of all blobs share this limit in the kernel (12 by default): a store that is slow for
// one blob must not stop the read-ahead of others.
constexpr uint16_t kMaxBackground = 512;
constexpr uint16_t kCongestionThreshold = 384;
// A blob never changes: its attributes and name may be kept for ever.
constexpr uint64_t kForeverSeconds = 10ull * 365 * 24 * 3600;
constexpr int kKickSignal = SIGUSR2;

template <typename T>
bool Take(std::span<const uint8_t> body, T* out) {
  if (body.size() < sizeof(T)) return false;
  std::memcpy(out, body.data(), sizeof(T));
  return true;
}

int ErrnoFor(const Status& status) { return status.code() == Code::kNotFound ? ENOENT : EIO; }

void FillAttributes(const FuseFileAttributes& file, fuse_attr* attr) {
  attr->ino = file.node;
  attr->size = file.size;
  attr->blocks = file.size / 512;
  attr->blksize = 4096;
  if (file.node == FUSE_ROOT_ID) {
    attr->mode = S_IFDIR | 0500;
    attr->nlink = 2;
  } else {
    attr->mode = S_IFREG | 0400;
    attr->nlink = 1;
  }
}

void InstallKickHandler() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ::sigaction(kKickSignal, &action, nullptr);  // no SA_RESTART: read(2) must return
}

}  // namespace

FuseSession::FuseSession(const FuseSessionOptions& options, FuseFiles& files)
    : options_(options), files_(files), device_(options.fd) {}

FuseSession::~FuseSession() {
  Stop();
  Wait();
}

Status FuseSession::Start() {
  ended_fd_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!ended_fd_.valid()) return ErrnoError("make an eventfd");
  Result<SessionState> state = LoadSessionState(options_.state_file);
  if (state.ok()) {
    fuse_init_in init{};
    std::memcpy(&init, state->init_request.data() + sizeof(fuse_in_header),
                std::min(sizeof(init), state->init_request.size() - sizeof(fuse_in_header)));
    LogInfo("fuse-session-continued", {{"kernel_minor", init.minor}});
  } else if (state.status().code() != Code::kNotFound) {
    LogWarning("fuse-session-state-unusable", {{"error", state.status().ToString()}});
  }
  // Before the threads: nothing that this process has taken can then be sent to it twice. Also on
  // what looks like a fresh session, since a server may die before it has saved anything.
  Status resent = device_.RequestResend();
  if (resent.code() == Code::kUnimplemented) {
    LogWarning("fuse-resend-unsupported", {{"error", resent.ToString()}});
  } else if (!resent.ok() && resent.error_number() != EPERM) {
    return resent;  // EPERM: not mounted yet, so nothing was taken
  }

  InstallKickHandler();
  running_ = options_.threads;
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this] {
      RunThread();
      if (running_.fetch_sub(1) == 1) (void)::eventfd_write(ended_fd_.get(), 1);
    });
  }
  return OkStatus();
}

void FuseSession::Stop() {
  stopping_ = true;
  // A signal that comes just before read(2) is lost, so it is repeated until all have seen it.
  while (running_.load() > 0) {
    for (std::thread& thread : threads_) ::pthread_kill(thread.native_handle(), kKickSignal);
    pollfd ended{ended_fd_.get(), POLLIN, 0};
    (void)::poll(&ended, 1, 10);
  }
}

void FuseSession::Wait() {
  std::lock_guard lock(join_mutex_);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void FuseSession::RunThread() {
  Result<ResidentBuffer> request = ResidentBuffer::Create(kRequestBufferSize);
  Result<ReplyBuffer> reply = ReplyBuffer::Create(kMaxFuseRead);
  if (!request.ok() || !reply.ok()) {
    LogError("fuse-thread-without-memory",
             {{"error", (request.ok() ? reply.status() : request.status()).ToString()}});
    return;
  }
  size_t size = 0;
  while (TakeRequest(*request, &size)) Dispatch(request->data(), size, *reply);
}

bool FuseSession::TakeRequest(const ResidentBuffer& buffer, size_t* size) {
  while (!stopping_) {
    ssize_t n = ::read(options_.fd, buffer.data(), buffer.size());
    if (n >= static_cast<ssize_t>(sizeof(fuse_in_header))) {
      *size = static_cast<size_t>(n);
      return true;
    }
    if (n >= 0) continue;
    if (errno == EINTR || errno == ENOENT) continue;  // ENOENT: it was interrupted meanwhile
    if (errno == EAGAIN) {
      pollfd readable{options_.fd, POLLIN, 0};
      (void)::poll(&readable, 1, 1000);
      continue;
    }
    if (errno == EPERM) {  // the descriptor is not mounted yet
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    if (errno != ENODEV) LogError("fuse-device-failed", {{"error", std::strerror(errno)}});
    return false;
  }
  return false;
}

void FuseSession::Dispatch(const uint8_t* request, size_t size, const ReplyBuffer& buffer) {
  fuse_in_header in;
  std::memcpy(&in, request, sizeof(in));
  std::span<const uint8_t> body{request + sizeof(in), size - sizeof(in)};
  switch (in.opcode) {
    case FUSE_INIT:
      return HandleInit(in.unique, body, {request, size});
    case FUSE_LOOKUP:
      return HandleLookup(in.unique, in.nodeid, body);
    case FUSE_GETATTR:
      return HandleGetattr(in.unique, in.nodeid);
    case FUSE_OPEN:
    case FUSE_OPENDIR:
      return HandleOpen(in.unique, in.nodeid, body);
    case FUSE_READ:
      return HandleRead(in.unique, in.nodeid, body, buffer);
    case FUSE_READDIR:
      return HandleReaddir(in.unique, body, buffer);
    case FUSE_STATFS:
      return HandleStatfs(in.unique);
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR:
    case FUSE_DESTROY:
      return device_.ReplyError(in.unique, 0);
    case FUSE_FORGET:        // node ids are derived from names: nothing is kept for them
    case FUSE_BATCH_FORGET:  //
    case FUSE_INTERRUPT:     // every read ends by its own deadline; the kernel allows ignoring it
      return;
    case FUSE_SETATTR:
    case FUSE_MKNOD:
    case FUSE_MKDIR:
    case FUSE_UNLINK:
    case FUSE_RMDIR:
    case FUSE_RENAME:
    case FUSE_RENAME2:
    case FUSE_LINK:
    case FUSE_SYMLINK:
    case FUSE_WRITE:
    case FUSE_CREATE:
    case FUSE_TMPFILE:
    case FUSE_FALLOCATE:
      return device_.ReplyError(in.unique, EROFS);
    default:
      return device_.ReplyError(in.unique, ENOSYS);  // the kernel does not ask again
  }
}

void FuseSession::HandleInit(uint64_t unique, std::span<const uint8_t> body,
                             std::span<const uint8_t> whole) {
  fuse_init_in in{};
  std::memcpy(&in, body.data(), std::min(sizeof(in), body.size()));
  fuse_init_out out{};
  out.major = FUSE_KERNEL_VERSION;
  out.minor = FUSE_KERNEL_MINOR_VERSION;
  if (in.major > FUSE_KERNEL_VERSION) {  // the kernel tries again with our version
    return device_.ReplyStruct(unique, out);
  }
  if (in.major < FUSE_KERNEL_VERSION || in.minor < 31) {
    LogError("fuse-protocol-too-old", {{"major", in.major}, {"minor", in.minor}});
    return device_.ReplyError(unique, EPROTO);
  }
  // Saved before it is answered: once the kernel has the answer it never sends INIT again.
  Status saved =
      SaveSessionState(options_.state_file,
                       {std::string(reinterpret_cast<const char*>(whole.data()), whole.size())});
  if (!saved.ok()) LogWarning("fuse-session-state-not-saved", {{"error", saved.ToString()}});

  uint64_t offered = in.flags | static_cast<uint64_t>(in.flags2) << 32;
  uint64_t wanted = FUSE_ASYNC_READ | FUSE_ASYNC_DIO | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES |
                    FUSE_EXPLICIT_INVAL_DATA | FUSE_INIT_EXT | kHasResend;
  if ((offered & kHasResend) == 0) LogWarning("fuse-resend-unsupported");
  uint64_t flags = offered & wanted;
  out.flags = static_cast<uint32_t>(flags);
  out.flags2 = static_cast<uint32_t>(flags >> 32);
  out.max_readahead = std::min<uint32_t>(in.max_readahead, kMaxFuseRead);
  out.max_write = kMaxWrite;
  out.max_background = kMaxBackground;
  out.congestion_threshold = kCongestionThreshold;
  out.time_gran = 1;
  out.max_pages = kMaxFuseRead / 4096;
  device_.ReplyStruct(unique, out);
  LogInfo("fuse-session-started", {{"kernel_minor", in.minor}});
}

void FuseSession::HandleLookup(uint64_t unique, uint64_t parent, std::span<const uint8_t> body) {
  if (parent != FUSE_ROOT_ID) return device_.ReplyError(unique, ENOTDIR);
  const auto* text = reinterpret_cast<const char*>(body.data());
  Result<FuseFileAttributes> file = files_.Lookup({text, ::strnlen(text, body.size())});
  // A name that is missing is not remembered (no reply with node 0): its map may come at any time.
  if (!file.ok()) return device_.ReplyError(unique, ErrnoFor(file.status()));
  fuse_entry_out out{};
  out.nodeid = file->node;
  out.entry_valid = kForeverSeconds;
  out.attr_valid = kForeverSeconds;
  FillAttributes(*file, &out.attr);
  device_.ReplyStruct(unique, out);
}

void FuseSession::HandleGetattr(uint64_t unique, uint64_t node) {
  FuseFileAttributes file{FUSE_ROOT_ID, 0};
  if (node != FUSE_ROOT_ID) {
    Result<FuseFileAttributes> found = files_.Stat(node);
    if (!found.ok()) return device_.ReplyError(unique, ErrnoFor(found.status()));
    file = *found;
  }
  fuse_attr_out out{};
  out.attr_valid = kForeverSeconds;
  FillAttributes(file, &out.attr);
  device_.ReplyStruct(unique, out);
}

void FuseSession::HandleOpen(uint64_t unique, uint64_t node, std::span<const uint8_t> body) {
  fuse_open_in in{};
  if (!Take(body, &in)) return device_.ReplyError(unique, EINVAL);
  if ((in.flags & O_ACCMODE) != O_RDONLY) return device_.ReplyError(unique, EROFS);
  fuse_open_out out{};
  if (node != FUSE_ROOT_ID) out.open_flags = FOPEN_KEEP_CACHE;
  device_.ReplyStruct(unique, out);
}

void FuseSession::HandleRead(uint64_t unique, uint64_t node, std::span<const uint8_t> body,
                             const ReplyBuffer& buffer) {
  fuse_read_in in{};
  if (!Take(body, &in) || in.size > kMaxFuseRead) return device_.ReplyError(unique, EINVAL);
  files_.Read({unique, node, in.offset, in.size}, device_, buffer);
}

void FuseSession::HandleReaddir(uint64_t unique, std::span<const uint8_t> body,
                                const ReplyBuffer& buffer) {
  fuse_read_in in{};
  if (!Take(body, &in)) return device_.ReplyError(unique, EINVAL);
  std::vector<FuseFiles::Name> names = files_.List();
  std::span<uint8_t> room = buffer.payload().first(std::min<size_t>(in.size, kMaxFuseRead));
  size_t used = 0;
  for (uint64_t i = in.offset; i < names.size(); ++i) {
    const FuseFiles::Name& name = names[i];
    size_t need = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + name.name.size());
    if (used + need > room.size()) break;
    fuse_dirent entry{};
    entry.ino = name.node;
    entry.off = i + 1;
    entry.namelen = static_cast<uint32_t>(name.name.size());
    entry.type = S_IFREG >> 12;
    std::memset(room.data() + used, 0, need);
    std::memcpy(room.data() + used, &entry, FUSE_NAME_OFFSET);
    std::memcpy(room.data() + used + FUSE_NAME_OFFSET, name.name.data(), name.name.size());
    used += need;
  }
  device_.ReplyData(unique, buffer, used);
}

// What the keeper asks to learn whether this server lives: an answer proves that requests are taken
// and answered, an error that all is not well behind them.
void FuseSession::HandleStatfs(uint64_t unique) {
  if (!files_.Health().ok()) return device_.ReplyError(unique, EIO);
  fuse_statfs_out out{};
  out.st.bsize = 4096;
  out.st.frsize = 4096;
  out.st.namelen = 255;
  device_.ReplyStruct(unique, out);
}

}  // namespace esker
