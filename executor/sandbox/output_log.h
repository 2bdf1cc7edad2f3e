// OutputLog: one output stream of a command, kept in a file of which only a window at the end has
// blocks. The file's size is the stream's full size, so offsets never change and no separate
// position has to be recorded: what splice(2) moved is in the file, what it did not is in the pipe.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker {

// Not thread-safe (the event loop's thread uses it).
class OutputLog {
 public:
  // Opens the file and finds its window again, if there is one; a new one is made for the first
  // byte, with its directory. `keep` bytes at least stay readable (until the host's disk is full).
  static Result<OutputLog> Open(const std::string& path, uint64_t keep);
  // Only to read a finished stream; NOT_FOUND if its file was given up.
  static Result<OutputLog> OpenForReading(const std::string& path);

  uint64_t size() const { return size_; }    // bytes that came so far
  uint64_t start() const { return start_; }  // the first byte that is still kept

  enum class Moved { kSome, kEmpty, kEnd };
  // Moves what is in the non-blocking pipe, at most `limit` bytes, to the end of the file.
  Result<Moved> MoveFromPipe(int pipe, size_t limit);
  // The same from a terminal, which splice(2) cannot read.
  Result<Moved> MoveFromTerminal(int terminal);

  // Up to `limit` bytes from `offset`, or from start() if that is later.
  struct Piece {
    uint64_t offset = 0;
    uint64_t lost = 0;  // bytes between the offset asked for and `offset`
    std::string data;
  };
  Result<Piece> Read(uint64_t offset, size_t limit) const;

 private:
  OutputLog(std::string path, uint64_t keep) : path_(std::move(path)), keep_(keep) {}
  // False: there is no file and none can be made; the bytes are counted, but not kept.
  bool HasFile();
  void DropOld();
  // The disk is full: the bytes are counted, but not kept.
  Result<Moved> Discard(int source, size_t limit);
  Status GiveUpKept();
  void WarnNotKept(const std::string& cause);

  std::string path_;
  UniqueFd file_;  // empty until the first byte
  uint64_t keep_ = 0;
  uint64_t size_ = 0, start_ = 0;
  bool warned_full_ = false;
};

}  // namespace esker
