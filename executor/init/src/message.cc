#include "message.h"

#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace esker {
namespace {

constexpr size_t kBufferBytes = 164 * 1024;  // more than the largest message
constexpr size_t kKeptBytes = 8 * 1024;
constexpr size_t kMaxFds = 8;

alignas(4096) char g_buffer[kBufferBytes];

}  // namespace

int ReceiveInto(int socket, std::string_view& bytes, std::vector<UniqueFd>& fds) {
  iovec iov = {g_buffer, sizeof(g_buffer)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)];
  msghdr message = {};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t size;
  do {
    size = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (size < 0 && errno == EINTR);
  if (size < 0) return errno == EWOULDBLOCK ? EAGAIN : errno;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  if (size == 0) return ECONNRESET;
  if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) return EMSGSIZE;
  bytes = {g_buffer, static_cast<size_t>(size)};
  return 0;
}

void ReleaseReceiveBuffer(size_t used) {
  if (used > kKeptBytes) ::madvise(g_buffer, sizeof(g_buffer), MADV_DONTNEED);
}

int SendFrom(int socket, std::string_view bytes, const std::vector<UniqueFd>& fds) {
  iovec iov = {const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
  msghdr message = {};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    for (size_t i = 0; i < fds.size(); ++i) {
      int fd = fds[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  ssize_t size;
  do {
    size = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (size < 0 && errno == EINTR);
  if (size >= 0) return 0;
  return errno == EWOULDBLOCK ? EAGAIN : errno;
}

}  // namespace esker
