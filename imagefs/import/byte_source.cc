#include "byte_source.h"

#include <unistd.h>

#include <cerrno>
#include <vector>

namespace esker {
namespace {

class FdSourceImpl : public ByteSource {
 public:
  explicit FdSourceImpl(int fd) : fd_(fd) {}
  Result<size_t> Read(void* buffer, size_t size) override {
    for (;;) {
      ssize_t n = ::read(fd_, buffer, size);
      if (n >= 0) return static_cast<size_t>(n);
      if (errno != EINTR) return ErrnoError("read the stream");
    }
  }

 private:
  int fd_;
};

}  // namespace

std::unique_ptr<ByteSource> FdSource(int fd) { return std::make_unique<FdSourceImpl>(fd); }

namespace import_internal {

Result<size_t> HashingSource::Read(void* buffer, size_t size) {
  ESKER_ASSIGN_OR_RETURN(size_t n, source_.Read(buffer, size));
  hash_.Update(buffer, n);
  bytes_ += n;
  return n;
}

Result<std::string> HashingSource::DrainAndDigest() {
  std::vector<char> rest(64u << 10);
  for (;;) {
    ESKER_ASSIGN_OR_RETURN(size_t n, Read(rest.data(), rest.size()));
    if (n == 0) return "sha256:" + hash_.Finish().ToHex();
  }
}

Result<size_t> ReadFully(ByteSource& source, void* buffer, size_t size) {
  size_t done = 0;
  while (done < size) {
    ESKER_ASSIGN_OR_RETURN(size_t n, source.Read(static_cast<char*>(buffer) + done, size - done));
    if (n == 0) break;
    done += n;
  }
  return done;
}

Status CheckDigest(const std::string& what, const std::string& expected, const std::string& found) {
  if (expected.empty() || expected == found) return OkStatus();
  return DataLossError(what + " is " + found + ", expected " + expected);
}

}  // namespace import_internal
}  // namespace esker
