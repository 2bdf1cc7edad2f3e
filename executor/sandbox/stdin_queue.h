// StdinQueue: bytes on their way into a command's stdin, bounded, with positions so that a repeated
// send does no harm. Loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "base/event_loop.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace esker {

class StdinQueue {
 public:
  using Done = std::function<void(Result<uint64_t>)>;
  static constexpr size_t kMaxQueued = 4u << 20;

  explicit StdinQueue(EventLoop& loop) : loop_(loop) {}
  ~StdinQueue() { Close(CancelledError("the command's stdin was closed")); }

  // `accepted`: what earlier connections have written already.
  void Open(UniqueFd pipe, uint64_t accepted, bool closed);
  bool open() const { return pipe_.valid(); }
  uint64_t written() const { return written_; }
  bool closed_by_sender() const { return eof_; }

  // OUT_OF_RANGE: a gap before `offset`. RESOURCE_EXHAUSTED: too much waits already.
  // FAILED_PRECONDITION: closed before, or the command does not read any more.
  void Send(std::string data, bool eof, std::optional<uint64_t> offset, Done done);
  // Called when all that was sent before the end is in the pipe; then close the other holders.
  std::function<void()> on_end;
  // Called when bytes (or the end) are in the pipe; records the position, then continues.
  std::function<void(std::function<void()> then)> on_progress;
  bool pty = false;  // the end is a character (^D), not a close

  // Fails what waits.
  void Close(const Status& why);

 private:
  struct Item {
    std::string data;
    size_t done_bytes = 0;
    bool eof = false;
    uint64_t end = 0;  // position after it
    Done done;
  };
  void Flush();
  void WriteSome();
  void FinishEof();

  EventLoop& loop_;
  UniqueFd pipe_;
  bool watched_ = false;
  std::deque<Item> items_;
  size_t queued_bytes_ = 0;
  uint64_t accepted_ = 0, written_ = 0;
  bool eof_ = false;
};

}  // namespace esker
