#include "resident_buffer.h"

#include <sys/mman.h>

#include <cstring>

#include "base/log.h"

namespace esker {

Result<ResidentBuffer> ResidentBuffer::Create(size_t size) {
  ResidentBuffer buffer;
  size_t rounded = (size + 4095) / 4096 * 4096;
  void* mapped = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED) return ErrnoError("map a buffer of " + std::to_string(rounded));
  buffer.data_ = static_cast<uint8_t*>(mapped);
  buffer.size_ = rounded;
  // MAP_POPULATE is best effort; touching is not.
  std::memset(buffer.data_, 0, rounded);
  if (::mlock(buffer.data_, rounded) != 0) {
    static const bool logged = [] {
      LogWarning("buffers-not-locked",
                 {{"error", std::strerror(errno)},
                  {"effect", "a kill of this server while it is swapped out can fail a read"}});
      return true;
    }();
    (void)logged;
  }
  return buffer;
}

ResidentBuffer::~ResidentBuffer() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Result<ReplyBuffer> ReplyBuffer::Create(size_t payload_size) {
  ReplyBuffer reply;
  ESKER_ASSIGN_OR_RETURN(reply.buffer_, ResidentBuffer::Create(kHeadRoom + payload_size));
  return reply;
}

}  // namespace esker
