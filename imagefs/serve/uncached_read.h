// Reading a file once without leaving its pages in memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>

namespace esker {

// pread(2) that drops the pages it brought in (RWF_DONTCACHE, Linux 6.14, where the file system
// takes it); pages that were there before stay. Elsewhere a plain pread.
ssize_t ReadUncached(int fd, std::span<uint8_t> out, uint64_t offset);

}  // namespace esker
