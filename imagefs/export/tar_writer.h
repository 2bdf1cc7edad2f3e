// Writes PAX tars (POSIX.1-2001) whose bytes depend on nothing but what is written. Private to
// export.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "imagefs/export.h"

namespace esker::export_internal {

struct TarMember {
  char type =
      '0';  // '0' file, '1' hard link, '2' symlink, '3' '4' devices, '5' directory, '6' fifo
  std::string path;
  std::string link_target;
  uint32_t mode = 0;
  uint32_t uid = 0, gid = 0;
  int64_t mtime_seconds = 0;
  uint32_t mtime_nanos = 0;
  uint32_t device_major = 0, device_minor = 0;
  std::map<std::string, std::string> xattrs;
  uint64_t size = 0;
  // Not empty: a sparse file (GNU format 1.0) with data in these runs (offset, length).
  std::vector<std::pair<uint64_t, uint64_t>> runs;
  bool sparse = false;
};

class TarWriter {
 public:
  explicit TarWriter(ByteSink sink) : sink_(std::move(sink)) {}

  // Extended header if one is needed, header, and a sparse file's map. A file's content follows by
  // Write: its size, or the sum of its runs; then EndContent.
  Status Begin(const TarMember& member);
  Status Write(std::string_view bytes);
  Status EndContent();
  // The end of the archive.
  Status End();

 private:
  Status Pad();
  ByteSink sink_;
  uint64_t at_ = 0;
};

}  // namespace esker::export_internal
