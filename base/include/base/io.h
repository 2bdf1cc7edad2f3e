// The door to files: whole reads and writes, durable publication, beneath-only opening.
// All descriptors made here are close-on-exec. Errors carry the errno and name the path.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker {

// Paths given to these are trusted (chosen by the platform), never by a guest.
Result<UniqueFd> OpenFile(const std::string& path, int flags, mode_t mode = 0600);
Result<UniqueFd> OpenFileAt(int dirfd, const std::string& path, int flags, mode_t mode = 0600);

// For names that a guest may have planted links under. openat2 with RESOLVE_BENEATH |
// RESOLVE_NO_MAGICLINKS: a path that leaves dirfd gives PERMISSION_DENIED (EXDEV).
Result<UniqueFd> OpenBeneath(int dirfd, const std::string& path, int flags, mode_t mode = 0);
// openat2 with RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS: dirfd acts as `/`.
Result<UniqueFd> OpenInRoot(int dirfd, const std::string& path, int flags, mode_t mode = 0);

// Reads until `size` bytes or end of file; returns the bytes read. Retries EINTR.
Result<size_t> ReadFull(int fd, void* buffer, size_t size);
// Reads exactly `size` bytes at `offset`; a short file is DATA_LOSS.
Status PReadExact(int fd, void* buffer, size_t size, uint64_t offset, std::string_view what);
Status WriteFull(int fd, const void* data, size_t size);
Status PWriteFull(int fd, const void* data, size_t size, uint64_t offset);

// The whole file; RESOURCE_EXHAUSTED if it is larger than `limit` bytes.
Result<std::string> ReadFileToString(const std::string& path, size_t limit = 64u << 20);
// Writes a file (not durable; for /proc, cgroup files and the like: one write(2) call).
Status WriteStringToFile(const std::string& path, std::string_view data);
Status WriteStringToFileAt(int dirfd, const std::string& path, std::string_view data);

// Durable replacement on a local file system: temporary file, write, fsync, rename over, fsync of
// the directory. After OK the new content survives power loss; before it, the old content does.
Status ReplaceFileDurably(const std::string& path, std::string_view data, mode_t mode = 0600);

Status FsyncDirectory(const std::string& path);
// mkdir -p with mode 0700 for new directories.
Status MakeDirectories(const std::string& path, mode_t mode = 0700);
// rm -r, without following links and without crossing mounts. A missing path is OK.
Status RemoveTree(const std::string& path);
// Names in a directory, sorted bytewise, without . and ..
Result<std::vector<std::string>> ListDirectory(const std::string& path);
bool PathExists(const std::string& path);

}  // namespace esker
