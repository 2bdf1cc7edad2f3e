// FuseDevice: the writing side of a FUSE session. <linux/fuse.h> is the protocol.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "resident_buffer.h"

namespace esker {

// Largest READ that the kernel sends (mount option max_read, and max_pages in our INIT reply).
inline constexpr uint32_t kMaxFuseRead = 1u << 20;

// Thread-safe: each call is one write(2), which the kernel takes as a whole. Errors of the writes
// are not reported: the only ones there are say that nobody waits for the reply any more.
class FuseDevice {
 public:
  explicit FuseDevice(int fd) : fd_(fd) {}  // not owned

  void ReplyError(uint64_t unique, int error) const;
  // The payload is the first `size` bytes of buffer.payload().
  void ReplyData(uint64_t unique, const ReplyBuffer& buffer, size_t size) const;
  // A small reply; copied.
  void ReplyBytes(uint64_t unique, const void* data, size_t size) const;
  template <typename T>
  void ReplyStruct(uint64_t unique, const T& value) const {
    ReplyBytes(unique, &value, sizeof(value));
  }
  // Asks the kernel to queue again every request that was read from this session and never
  // answered. UNIMPLEMENTED on kernels before 6.9.
  Status RequestResend() const;
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace esker
