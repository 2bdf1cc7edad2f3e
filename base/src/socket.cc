#include "base/socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/clock.h"
#include "base/io.h"

namespace esker {
namespace {

// sun_path holds 107 bytes; going through the directory's descriptor removes that limit.
struct SocketAddress {
  UniqueFd directory;
  sockaddr_un address = {};
};

Result<SocketAddress> MakeAddress(const std::string& path) {
  size_t slash = path.rfind('/');
  std::string dir = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  SocketAddress out;
  ESKER_ASSIGN_OR_RETURN(out.directory, OpenFile(dir, O_PATH | O_DIRECTORY));
  std::string through = "/proc/self/fd/" + std::to_string(out.directory.get()) + "/" + name;
  if (through.size() >= sizeof(out.address.sun_path)) {
    return InvalidArgumentError("socket name too long: " + path);
  }
  out.address.sun_family = AF_UNIX;
  std::memcpy(out.address.sun_path, through.c_str(), through.size() + 1);
  return out;
}

Result<UniqueFd> NewSocket(int flags) {
  int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
  if (fd < 0) return ErrnoError("make unix socket");
  return UniqueFd(fd);
}

}  // namespace

Result<UniqueFd> ListenSeqpacket(const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(SocketAddress address, MakeAddress(path));
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(SOCK_NONBLOCK));
  // The file gets the socket's own mode, so there is no moment at which others may connect.
  if (::fchmod(fd.get(), 0600) != 0) return ErrnoError("restrict " + path);
  auto bind = [&] {
    return ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address.address), sizeof(sockaddr_un));
  };
  if (bind() != 0) {
    if (errno != EADDRINUSE) return ErrnoError("bind " + path);
    if (ConnectSeqpacket(path).ok()) {
      return Status::FromErrno(EADDRINUSE, "listen on " + path + ": another process serves it");
    }
    if (::unlink(address.address.sun_path) != 0 && errno != ENOENT) {
      return ErrnoError("remove stale socket " + path);
    }
    if (bind() != 0) return ErrnoError("bind " + path);
  }
  if (::listen(fd.get(), 128) != 0) return ErrnoError("listen on " + path);
  return fd;
}

Result<UniqueFd> ConnectSeqpacket(const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(SocketAddress address, MakeAddress(path));
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(0));
  while (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address.address), sizeof(sockaddr_un))) {
    if (errno != EINTR) return ErrnoError("connect to " + path);
  }
  return fd;
}

Result<std::pair<UniqueFd, UniqueFd>> SeqpacketPair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return ErrnoError("make socket pair");
  }
  return std::make_pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

Status SendMessage(int socket, std::string_view data, const std::vector<int>& fds) {
  if (data.size() > kMaxSocketMessage || fds.size() > kMaxSocketFds) {
    return InvalidArgumentError("socket message of " + std::to_string(data.size()) + " bytes and " +
                                std::to_string(fds.size()) + " descriptors is too large");
  }
  iovec iov = {const_cast<char*>(data.data()), data.size()};
  msghdr message = {};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxSocketFds)];
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    std::memset(control, 0, message.msg_controllen);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  for (;;) {
    ssize_t n = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (n >= 0) return OkStatus();
    if (errno != EINTR) return ErrnoError("send message");
  }
}

Result<SocketMessage> ReceiveMessage(int socket) {
  SocketMessage out;
  // One byte more than a message may have. Each thread keeps one: most messages are small, and to
  // get and clear so much for each costs more than to copy them.
  static thread_local std::unique_ptr<char[]> buffer;
  if (!buffer) buffer.reset(new char[kMaxSocketMessage + 1]);
  iovec iov = {buffer.get(), kMaxSocketMessage + 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxSocketFds)];
  msghdr message = {};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n;
  do {
    n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return ErrnoError("receive message");
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      out.fds.emplace_back(fd);
    }
  }
  if (n == 0 && out.fds.empty()) {
    return Status::FromErrno(ECONNRESET, "receive message: the peer closed the connection");
  }
  if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
    return DataLossError("receive message: it was cut off (too large or too many descriptors)");
  }
  out.data.assign(buffer.get(), static_cast<size_t>(n));
  return out;
}

Result<PeerCredentials> GetPeerCredentials(int socket) {
  ucred cred;
  socklen_t size = sizeof(cred);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0) {
    return ErrnoError("read peer credentials");
  }
  return PeerCredentials{cred.pid, cred.uid, cred.gid};
}

Status WaitReadable(int fd, int timeout_ms) {
  int64_t deadline = Clock::System().MonotonicNanos() + int64_t{timeout_ms} * 1'000'000;
  for (;;) {
    pollfd p = {fd, POLLIN, 0};
    int wait = -1;
    if (timeout_ms >= 0) {
      int64_t left = deadline - Clock::System().MonotonicNanos();
      wait = left <= 0 ? 0 : static_cast<int>((left + 999'999) / 1'000'000);
    }
    int n = ::poll(&p, 1, wait);
    if (n > 0) return OkStatus();
    if (n == 0) {
      return DeadlineExceededError("no data within " + std::to_string(timeout_ms) + " ms");
    }
    if (errno != EINTR) return ErrnoError("poll");
  }
}

}  // namespace esker
