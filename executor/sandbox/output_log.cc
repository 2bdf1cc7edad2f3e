#include "output_log.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/io.h"
#include "base/log.h"

namespace esker {
namespace {

constexpr uint64_t kHoleAlignment = 64u << 10;

Result<uint64_t> SizeOf(int fd, const std::string& path) {
  struct stat st;
  if (::fstat(fd, &st) != 0) return ErrnoError("stat " + path);
  return static_cast<uint64_t>(st.st_size);
}

// Blocks are freed in steps, so that a chatty command does not pay for it with every write.
uint64_t HoleStep(uint64_t keep) {
  return std::clamp<uint64_t>(keep / 8, kHoleAlignment, 4u << 20);
}

}  // namespace

Result<OutputLog> OutputLog::Open(const std::string& path, uint64_t keep) {
  OutputLog log(path, keep);
  Result<UniqueFd> file = OpenFile(path, O_RDWR);
  if (file.status().code() == Code::kNotFound) return log;
  if (!file.ok()) return std::move(file).status();
  log.file_ = std::move(*file);
  ESKER_ASSIGN_OR_RETURN(log.size_, SizeOf(log.file_.get(), path));
  // Everything before the first block was given up (output is written, never left as a hole).
  off_t data = ::lseek(log.file_.get(), 0, SEEK_DATA);
  log.start_ = data >= 0 ? static_cast<uint64_t>(data) : log.size_;
  return log;
}

Result<OutputLog> OutputLog::OpenForReading(const std::string& path) {
  ESKER_ASSIGN_OR_RETURN(OutputLog log, Open(path, UINT64_MAX));
  if (!log.file_.valid()) return NotFoundError("output " + path + " is not kept any more");
  return log;
}

bool OutputLog::HasFile() {
  if (file_.valid()) return true;
  Result<UniqueFd> file = OpenFile(path_, O_RDWR | O_CREAT);
  if (file.status().code() == Code::kNotFound) {
    Status made = MakeDirectories(path_.substr(0, path_.rfind('/')));
    file = made.ok() ? OpenFile(path_, O_RDWR | O_CREAT) : Result<UniqueFd>(made);
  }
  if (file.ok()) {
    file_ = std::move(*file);
    return true;
  }
  WarnNotKept(file.status().ToString());
  return false;
}

void OutputLog::WarnNotKept(const std::string& cause) {
  if (!warned_full_) LogWarning("output_not_kept", {{"file", path_}, {"cause", cause}});
  warned_full_ = true;
}

Result<OutputLog::Moved> OutputLog::MoveFromPipe(int pipe, size_t limit) {
  // Most commands print nothing on at least one stream: no file for those.
  if (!file_.valid()) {
    pollfd ready = {pipe, POLLIN, 0};
    if (::poll(&ready, 1, 0) < 0 && errno != EINTR) return ErrnoError("poll a pipe for " + path_);
    if ((ready.revents & POLLIN) == 0) return ready.revents != 0 ? Moved::kEnd : Moved::kEmpty;
    if (!HasFile()) return Discard(pipe, limit);
  }
  bool some = false;
  while (limit > 0) {
    loff_t at = static_cast<loff_t>(size_);
    ssize_t n = ::splice(pipe, nullptr, file_.get(), &at, limit, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    if (n > 0) {
      some = true;
      size_ += static_cast<uint64_t>(n);
      limit -= static_cast<size_t>(n);
      DropOld();
      continue;
    }
    if (n == 0) return Moved::kEnd;
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return some ? Moved::kSome : Moved::kEmpty;
    if (errno == ENOSPC || errno == EDQUOT || errno == EIO) return Discard(pipe, limit);
    return ErrnoError("move output to " + path_);
  }
  return Moved::kSome;
}

Result<OutputLog::Moved> OutputLog::MoveFromTerminal(int terminal) {
  char buffer[16 << 10];
  ssize_t n;
  do {
    n = ::read(terminal, buffer, sizeof(buffer));
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return Moved::kEmpty;
  // A terminal whose other side is closed everywhere says EIO.
  if (n == 0 || (n < 0 && errno == EIO)) return Moved::kEnd;
  if (n < 0) return ErrnoError("read a terminal for " + path_);
  bool kept = HasFile() && PWriteFull(file_.get(), buffer, static_cast<size_t>(n), size_).ok();
  size_ += static_cast<uint64_t>(n);
  if (!kept) ESKER_RETURN_IF_ERROR(GiveUpKept());
  DropOld();
  return Moved::kSome;
}

Result<OutputLog::Moved> OutputLog::Discard(int source, size_t limit) {
  WarnNotKept("the node's disk is full");
  char buffer[64 << 10];
  ssize_t n;
  do {
    n = ::read(source, buffer, std::min(limit, sizeof(buffer)));
  } while (n < 0 && errno == EINTR);
  if (n == 0) return Moved::kEnd;
  if (n < 0 && errno == EAGAIN) return Moved::kEmpty;
  if (n < 0) return ErrnoError("read output for " + path_);
  size_ += static_cast<uint64_t>(n);
  ESKER_RETURN_IF_ERROR(GiveUpKept());
  return Moved::kSome;
}

// All bytes so far count as lost.
Status OutputLog::GiveUpKept() {
  start_ = size_;
  if (!file_.valid()) return OkStatus();
  if (::ftruncate(file_.get(), static_cast<off_t>(size_)) != 0) {
    return ErrnoError("extend " + path_);
  }
  ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
              static_cast<off_t>(size_));  // gives the disk back what it can; nothing to do if not
  return OkStatus();
}

void OutputLog::DropOld() {
  if (size_ - start_ <= keep_ || size_ - start_ - keep_ < HoleStep(keep_)) return;
  uint64_t until = (size_ - keep_) / kHoleAlignment * kHoleAlignment;
  if (until <= start_) return;
  if (::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                  static_cast<off_t>(until)) != 0) {
    LogWarning("output_window", {{"file", path_}, {"errno", errno}});
    return;
  }
  start_ = until;
}

Result<OutputLog::Piece> OutputLog::Read(uint64_t offset, size_t limit) const {
  Piece piece;
  piece.offset = std::max(offset, start_);
  piece.lost = piece.offset - offset;
  if (piece.offset >= size_) return piece;
  piece.data.resize(std::min<uint64_t>(limit, size_ - piece.offset));
  ESKER_RETURN_IF_ERROR(
      PReadExact(file_.get(), piece.data.data(), piece.data.size(), piece.offset, path_));
  return piece;
}

}  // namespace esker
