// How a file becomes visible in the store: link() to a name that never existed. Private to the
// store.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker::store_internal {

// Bounds what is read into memory from small files of the store.
inline constexpr size_t kMaxRecordBytes = 16u << 20;

// Opens a directory or a regular file of the store. Never follows a link in the last component,
// never blocks on a fifo; anything but the wanted kind is DATA_LOSS.
Result<UniqueFd> OpenDirectoryAt(int root, const std::string& path);
Result<UniqueFd> OpenRegularAt(int root, const std::string& path);

Status FsyncDirectoryAt(int root, const std::string& path);
// mkdir; OK if it is there. Not durable by itself.
Status MakeDirectoryAt(int root, const std::string& path);
// Names in a directory, sorted, without . and ..; NOT_FOUND if it is missing.
Result<std::vector<std::string>> ListAt(int root, const std::string& path);

// The whole of a small file.
Result<std::string> ReadSmallFileAt(int root, const std::string& path, size_t limit);

enum class LinkOutcome { kPublished, kExists };

// Gives the complete, synced file `temporary` the name directory/name, and makes that name durable.
// kExists: somebody else's file has the name (and its directory is synced, too). The directory is
// made when it is missing; its own name in its parent is the caller's to make durable
// (*made_directory says so). Failure points: <point>.before_link, .after_link, .after_dir_fsync.
Result<LinkOutcome> LinkDurably(int root, const std::string& temporary,
                                const std::string& directory, const std::string& name,
                                std::string_view point, bool* made_directory);

// Writes a new file in tmp/ with this content and syncs it; returns its path below the root.
Result<std::string> WriteTemporary(int root, std::string_view content);

}  // namespace esker::store_internal
