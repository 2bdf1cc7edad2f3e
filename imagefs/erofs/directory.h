// Directory content: sorted entries packed into 4096-byte blocks.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "format.h"

namespace esker::erofs {

struct DirectoryEntry {
  std::string_view name;
  uint64_t nid = 0;
  uint8_t file_type = 0;
};

// Adds up a directory's size entry by entry, in order. A block takes as many entries as fit.
class DirectorySizer {
 public:
  // True if the entry opened a new block.
  bool Add(std::string_view name) {
    const uint64_t bytes = sizeof(Dirent) + name.size();
    const bool fits = used_ + bytes <= kBlockSize && used_ > 0;
    if (!fits) {
      ++blocks_;
      used_ = 0;
    }
    used_ += bytes;
    return !fits;
  }
  // All blocks but the last count in full.
  uint64_t size() const { return blocks_ == 0 ? 0 : (blocks_ - 1) * kBlockSize + used_; }

 private:
  uint64_t blocks_ = 0;
  uint64_t used_ = 0;
};

// Writes one block's entries at `out`: first the fixed parts, then the names.
void WriteDirectoryBlock(const DirectoryEntry* entries, size_t count, char* out);

}  // namespace esker::erofs
