#include "uncached_read.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace esker {
namespace {

// Newer than the headers of Debian 12.
constexpr int kRwfDontCache = 0x80;

}  // namespace

ssize_t ReadUncached(int fd, std::span<uint8_t> out, uint64_t offset) {
  iovec vector{out.data(), out.size()};
  ssize_t n = ::preadv2(fd, &vector, 1, static_cast<off_t>(offset), kRwfDontCache);
  if (n < 0 && (errno == EOPNOTSUPP || errno == EINVAL)) {
    n = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
  }
  return n;
}

}  // namespace esker
