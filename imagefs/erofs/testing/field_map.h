// Where every field of an image lies, for tests that bend them one by one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace esker::erofs {

struct ImageField {
  uint64_t offset = 0;
  uint32_t bytes = 0;  // 1, 2, 4 or 8
  std::string what;    // "inode 130: nlink"
};

// Fields of the super block, the device slot, and of every inode, attribute, directory entry, name,
// symbolic link and chunk index that is reachable; of a true image. Of long names, targets and
// values the first and last bytes only.
std::vector<ImageField> FieldsOf(const std::string& image);

}  // namespace esker::erofs
