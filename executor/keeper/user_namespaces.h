// One user namespace per host id range, made once and kept: it maps ids 0.. of a sandbox to its
// range, both for its processes and for the id-mapped mounts of its files.
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker::keeper {

class UserNamespaces {
 public:
  UserNamespaces(uint32_t first_host_id, uint32_t range_size, size_t capacity)
      : first_host_id_(first_host_id), range_size_(range_size), capacity_(capacity) {}

  uint32_t FirstId(uint32_t range) const { return first_host_id_ + range * range_size_; }
  uint32_t range_size() const { return range_size_; }
  // Borrowed, valid until the next call. Blocks for about 0.3 ms when the range is new (or was
  // dropped as the least recently used of more than `capacity`).
  Result<int> Get(uint32_t range);

 private:
  struct Entry {
    UniqueFd fd;
    std::list<uint32_t>::iterator use;
  };
  uint32_t first_host_id_, range_size_;
  size_t capacity_;
  std::list<uint32_t> uses_;  // most recent first
  std::unordered_map<uint32_t, Entry> entries_;
};

}  // namespace esker::keeper
