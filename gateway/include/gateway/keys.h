// API keys: random bearer tokens, kept only as SHA-256 digests in a file of one key per line:
//   <name> <64 hex digits> <project or *> <user or admin>
// A lost file loses the keys, nothing else. The file is read again when it changes.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/status.h"

namespace esker {

struct ApiKey {
  std::string name;
  Digest digest;
  std::string project;  // "*": all
  bool admin = false;   // counts for keys of all projects only
};

class KeyFile {
 public:
  explicit KeyFile(std::string path) : path_(std::move(path)) {}

  // UNAUTHENTICATED if no key matches. Thread-safe.
  Result<ApiKey> Find(std::string_view secret);
  Result<std::vector<ApiKey>> List();
  // Makes a key and returns its secret, which is shown once and kept nowhere. ALREADY_EXISTS.
  Result<std::string> Create(const std::string& name, const std::string& project, bool admin);
  Result<bool> Remove(const std::string& name);

 private:
  Status Reload();  // needs mutex_
  Status Save(const std::vector<ApiKey>& keys) const;

  const std::string path_;
  std::mutex mutex_;
  int64_t loaded_mtime_ns_ = -1;  // guarded by mutex_
  uint64_t loaded_inode_ = 0;     // guarded by mutex_
  std::vector<ApiKey> keys_;      // guarded by mutex_
};

}  // namespace esker
