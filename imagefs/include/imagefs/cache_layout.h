// Names in a node's image cache, and the record that says a data blob is complete.
// docs/formats/cache.md.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "imagefs/types.h"

namespace esker {

// Paths are made from ids alone, so nothing from outside can lead out of the directory.
struct CacheLayout {
  std::string root;

  std::string MetaDirectory() const { return root + "/meta"; }
  std::string MapDirectory() const { return root + "/map"; }
  std::string DataDirectory() const { return root + "/data"; }
  std::string MetaPath(const BlobId& id) const { return root + "/meta/" + id.ToHex() + ".erofs"; }
  std::string MapPath(const BlobId& id) const { return root + "/map/" + id.ToHex() + ".map"; }
  std::string DataPath(const BlobId& id) const { return root + "/data/" + id.ToHex() + ".data"; }
  std::string PresencePath(const BlobId& id) const {
    return root + "/data/" + id.ToHex() + ".presence";
  }
  std::string CompletePath(const BlobId& id) const {
    return root + "/data/" + id.ToHex() + ".complete";
  }
  // mkdir -p of all three directories, mode 0700.
  Status MakeDirectories() const;
};

// Records durably that the data file holds the whole blob. The caller has verified every chunk and
// has had OK from fdatasync.
Status MarkBlobComplete(const CacheLayout& cache, const BlobId& id, uint64_t size_bytes);
Status UnmarkBlobComplete(const CacheLayout& cache, const BlobId& id);
// True if such a record exists, is intact, and the data file has that size.
bool IsBlobComplete(const CacheLayout& cache, const BlobId& id, uint64_t size_bytes);

}  // namespace esker
