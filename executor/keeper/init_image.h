// esker-init as a memory file: what PID 1 of every sandbox is executed from.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker::keeper {

// A sealed copy of a program, mode 0111, owned by the host's root: the sandbox's root has no
// capability over it, cannot read it, and so can neither trace nor look into what runs from it.
Result<UniqueFd> MakeProgramFile(const std::string& path);

// The copy of the program at `path` as it is now: made again when the file was replaced.
class InitImage {
 public:
  explicit InitImage(std::string path) : path_(std::move(path)) {}
  // Borrowed, valid until the next call.
  Result<int> Current();

 private:
  std::string path_;
  UniqueFd file_;
  ino_t inode_ = 0;
  int64_t changed_ns_ = 0;
};

}  // namespace esker::keeper
