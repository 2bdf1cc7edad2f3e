#include "byte_source.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

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

HashingSource::~HashingSource() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    ending_ = dropped_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Result<size_t> HashingSource::Read(void* buffer, size_t size) {
  if (filled_ == 0 || position_ == At(filled_ - 1).size) {
    ESKER_ASSIGN_OR_RETURN(bool more, Fill());
    if (!more) return size_t{0};
  }
  const Piece& piece = At(filled_ - 1);
  const size_t n = std::min(size, piece.size - position_);
  std::memcpy(buffer, piece.bytes.data() + position_, n);
  position_ += n;
  given_ += n;
  return n;
}

Result<std::string> HashingSource::Peek(size_t size) {
  if (filled_ == 0) ESKER_RETURN_IF_ERROR(Fill().status());
  if (filled_ == 0) return std::string();
  const Piece& piece = At(filled_ - 1);
  return std::string(reinterpret_cast<const char*>(piece.bytes.data()) + position_,
                     std::min(size, piece.size - position_));
}

Result<bool> HashingSource::Fill() {
  const uint64_t number = filled_;
  if (number >= kPieces) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return hashed_ + kPieces > number; });
  }
  Piece& piece = At(number);
  piece.bytes.resize(kPieceBytes);
  piece.size = 0;
  // A source that gives little at a time must not cost a hand-over each time.
  while (piece.size < kEnoughBytes) {
    ESKER_ASSIGN_OR_RETURN(size_t n,
                           source_.Read(piece.bytes.data() + piece.size, kPieceBytes - piece.size));
    if (n == 0) break;
    piece.size += n;
  }
  if (piece.size == 0) return false;
  position_ = 0;
  // The piece before is not touched any more: it may be hashed.
  if (number == 1) thread_ = std::thread([this] { HashPieces(); });
  {
    std::lock_guard lock(mutex_);
    filled_ = number + 1;
  }
  changed_.notify_all();
  return true;
}

void HashingSource::HashPieces() {
  for (uint64_t number = 0;; ++number) {
    {
      std::unique_lock lock(mutex_);
      hashed_ = number;
      changed_.notify_all();
      changed_.wait(lock, [&] { return number < filled_ || ending_; });
      if (dropped_ || number == filled_) return;
    }
    const Piece& piece = At(number);
    hash_.Update(piece.bytes.data(), piece.size);
  }
}

Result<std::string> HashingSource::DrainAndDigest() {
  for (;;) {
    if (filled_ > 0) {
      given_ += At(filled_ - 1).size - position_;
      position_ = At(filled_ - 1).size;
    }
    ESKER_ASSIGN_OR_RETURN(bool more, Fill());
    if (!more) break;
  }
  if (thread_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  } else if (filled_ > 0) {
    hash_.Update(At(0).bytes.data(), At(0).size);
  }
  return "sha256:" + hash_.Finish().ToHex();
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
