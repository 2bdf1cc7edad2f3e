#include "fuse_device.h"

#include <linux/fuse.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace esker {
namespace {

// Linux 6.9; the header of Debian 12 is older.
constexpr int32_t kNotifyResend = 7;

void WriteReply(int fd, const void* data, size_t size) {
  while (::write(fd, data, size) < 0) {
    if (errno == EINTR) continue;
    // ENOENT: the request was interrupted, or taken over. ENODEV, EPERM: the session has ended.
    if (errno != ENOENT && errno != ENODEV && errno != EPERM) {
      LogWarning("fuse-reply-refused", {{"error", std::strerror(errno)}, {"bytes", size}});
    }
    return;
  }
}

}  // namespace

void FuseDevice::ReplyError(uint64_t unique, int error) const {
  fuse_out_header header{};
  header.len = sizeof(header);
  header.error = -error;
  header.unique = unique;
  WriteReply(fd_, &header, sizeof(header));
}

void FuseDevice::ReplyData(uint64_t unique, const ReplyBuffer& buffer, size_t size) const {
  fuse_out_header header{};
  header.len = static_cast<uint32_t>(sizeof(header) + size);
  header.unique = unique;
  uint8_t* head = buffer.Head(sizeof(header));
  std::memcpy(head, &header, sizeof(header));
  WriteReply(fd_, head, header.len);
}

void FuseDevice::ReplyBytes(uint64_t unique, const void* data, size_t size) const {
  // On the stack, which was just written to and so is present (see ResidentBuffer).
  std::array<uint8_t, 512> reply;
  fuse_out_header header{};
  header.len = static_cast<uint32_t>(sizeof(header) + size);
  header.unique = unique;
  if (header.len > reply.size()) return ReplyError(unique, EIO);
  std::memcpy(reply.data(), &header, sizeof(header));
  if (size != 0) std::memcpy(reply.data() + sizeof(header), data, size);
  WriteReply(fd_, reply.data(), header.len);
}

Status FuseDevice::RequestResend() const {
  fuse_out_header header{};
  header.len = sizeof(header);
  header.error = kNotifyResend;
  if (::write(fd_, &header, sizeof(header)) >= 0) return OkStatus();
  if (errno == EINVAL) {
    return UnimplementedError(
        "ask the kernel to resend FUSE requests: needs Linux 6.9; reads that a dead server had "
        "taken stay blocked until the session ends");
  }
  return ErrnoError("ask the kernel to resend FUSE requests");
}

}  // namespace esker
