#include "stdin_queue.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace esker {

void StdinQueue::Open(UniqueFd pipe, uint64_t accepted, bool closed) {
  pipe_ = std::move(pipe);
  accepted_ = written_ = accepted;
  eof_ = closed;
}

void StdinQueue::Send(std::string data, bool eof, std::optional<uint64_t> offset, Done done) {
  if (offset) {
    if (*offset > accepted_) {
      return done(OutOfRangeError("stdin: " + std::to_string(accepted_) +
                                  " bytes were accepted so far, offset " + std::to_string(*offset) +
                                  " would leave a gap"));
    }
    uint64_t known = std::min<uint64_t>(accepted_ - *offset, data.size());
    data.erase(0, known);
  }
  if (data.empty() && (!eof || eof_)) {
    // All of it was sent before; the answer comes when that is in the pipe.
    if (items_.empty()) return done(accepted_);
    items_.push_back({.end = accepted_, .done = std::move(done)});
    return;
  }
  if (eof_) return done(FailedPreconditionError("stdin was closed before"));
  if (!pipe_.valid()) {
    return done(FailedPreconditionError("the command does not read its stdin any more"));
  }
  if (queued_bytes_ + data.size() > kMaxQueued && queued_bytes_ != 0) {
    return done(ResourceExhaustedError("stdin: " + std::to_string(queued_bytes_) +
                                       " bytes wait for the command to read them; send later"));
  }
  accepted_ += data.size();
  queued_bytes_ += data.size();
  eof_ = eof;
  items_.push_back(
      {.data = std::move(data), .eof = eof, .end = accepted_, .done = std::move(done)});
  if (!watched_) Flush();
}

void StdinQueue::WriteSome() {
  Item& item = items_.front();
  while (item.done_bytes < item.data.size()) {
    ssize_t n = ::write(pipe_.get(), item.data.data() + item.done_bytes,
                        item.data.size() - item.done_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;
    item.done_bytes += static_cast<size_t>(n);
    queued_bytes_ -= static_cast<size_t>(n);
    written_ += static_cast<uint64_t>(n);
  }
}

void StdinQueue::Flush() {
  while (!items_.empty()) {
    errno = 0;
    WriteSome();
    Item& item = items_.front();
    if (item.done_bytes < item.data.size()) {
      if (errno != EAGAIN) {
        return Close(Status::FromErrno(errno, "the command does not read its stdin any more")
                         .WithCode(Code::kFailedPrecondition));
      }
      if (!watched_) {
        Status status = loop_.Watch(pipe_.get(), EPOLLOUT, [this](uint32_t) { Flush(); });
        if (!status.ok()) return Close(status);
        watched_ = true;
      }
      return;
    }
    Item finished = std::move(item);
    items_.pop_front();
    if (finished.eof) FinishEof();
    if (!on_progress || (finished.data.empty() && !finished.eof)) {
      finished.done(finished.end);
    } else {
      on_progress([done = std::move(finished.done), end = finished.end] { done(end); });
    }
  }
  if (watched_ && items_.empty() && pipe_.valid()) {
    loop_.Unwatch(pipe_.get());
    watched_ = false;
  }
}

void StdinQueue::FinishEof() {
  if (pty) {
    ssize_t ignored = ::write(pipe_.get(), "\x04", 1);
    (void)ignored;  // a terminal whose input queue is full has not been read for 4 KiB
    return;
  }
  if (watched_) loop_.Unwatch(pipe_.get());
  watched_ = false;
  pipe_.reset();
  if (on_end) on_end();
}

void StdinQueue::Close(const Status& why) {
  if (watched_) loop_.Unwatch(pipe_.get());
  watched_ = false;
  pipe_.reset();
  queued_bytes_ = 0;
  std::deque<Item> items = std::exchange(items_, {});
  for (Item& item : items) item.done(why);
}

}  // namespace esker
