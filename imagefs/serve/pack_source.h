// PackSource: ranges of packs, by way of a bounded set of open files.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "imagefs/store.h"

namespace esker {

// Thread-safe. The store is opened at the first read, so that a server starts, and serves what is
// cached, while the store is away.
class PackSource {
 public:
  explicit PackSource(std::string store_directory) : directory_(std::move(store_directory)) {}

  // One try, one read: fills `out` from `offset` and returns the bytes there were (fewer only at
  // the end of the file). After an error the file is opened anew next time.
  Result<size_t> Read(const PackId& pack, uint64_t offset, std::span<uint8_t> out);

 private:
  using Handle = std::shared_ptr<const UniqueFd>;
  static constexpr size_t kMaxOpen = 128;

  Result<Handle> Open(const PackId& pack);
  void Forget(const PackId& pack);

  const std::string directory_;
  std::mutex mutex_;  // guards what follows
  std::shared_ptr<const Store> store_;
  std::list<PackId> recent_;  // front: used last
  struct OpenFile {
    Handle handle;
    std::list<PackId>::iterator position;
  };
  std::map<PackId, OpenFile> open_;
};

}  // namespace esker
