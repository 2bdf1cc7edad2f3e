// Names in a node's image cache, what a complete data blob is, and the settings that the node and
// its blob server share. docs/formats/cache.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "imagefs/types.h"

namespace esker {

// One directory of the cache. Paths are made from ids alone, so nothing from outside can lead out
// of it.
struct CacheLayout {
  std::string root;

  std::string MetaDirectory() const { return root + "/meta"; }
  std::string MapDirectory() const { return root + "/map"; }
  std::string DataDirectory() const { return root + "/data"; }
  std::string MetaPath(const BlobId& id) const { return root + "/meta/" + id.ToHex() + ".erofs"; }
  std::string MapPath(const BlobId& id) const { return root + "/map/" + id.ToHex() + ".map"; }
  // Some of the blob: holes may be punched into it, so it is never mounted by itself.
  std::string PartPath(const BlobId& id) const { return root + "/data/" + id.ToHex() + ".part"; }
  // All of it, synced and verified: mounted by itself, never punched, never written.
  std::string FullPath(const BlobId& id) const { return root + "/data/" + id.ToHex() + ".full"; }
  std::string PresencePath(const BlobId& id) const {
    return root + "/data/" + id.ToHex() + ".presence";
  }
  // Held (flock) by the one blob server that may change data/.
  std::string LockPath() const { return root + "/lock"; }
  std::string SettingsPath() const { return root + "/settings"; }
  // mkdir -p of all three directories, mode 0700.
  Status MakeDirectories() const;
};

// True if the whole blob lies there under its name and has that size.
bool IsBlobComplete(const CacheLayout& cache, const BlobId& id, uint64_t size_bytes);

// Which directories, and how much may lie in all of them. Kept in the cache's home, the one
// directory that the node and its blob server always have: there are the maps too. The home is a
// directory of the cache itself only if it is named.
struct CacheSettings {
  std::vector<std::string> directories;  // absolute; none: the home
  // Of real disk blocks, in all directories together. Empty: half of the file systems they lie on.
  std::optional<uint64_t> budget_bytes;
  bool operator==(const CacheSettings&) const = default;
};
// Replaced durably.
Status SaveCacheSettings(const std::string& home, const CacheSettings& settings);
// Without a file, or with a damaged one: the home alone, no stated budget.
CacheSettings LoadCacheSettings(const std::string& home);

}  // namespace esker
