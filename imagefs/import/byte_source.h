// Sources stacked on a source: hashing, reading exactly. Private to import.
#pragma once

#include <cstdint>
#include <string>

#include "base/digest.h"
#include "imagefs/import.h"

namespace esker::import_internal {

// Passes bytes through, counts and hashes them.
class HashingSource : public ByteSource {
 public:
  explicit HashingSource(ByteSource& source) : source_(source) {}
  Result<size_t> Read(void* buffer, size_t size) override;
  // Reads what is left and gives the digest of all, as "sha256:...". Call once.
  Result<std::string> DrainAndDigest();
  uint64_t bytes() const { return bytes_; }

 private:
  ByteSource& source_;
  Sha256 hash_;
  uint64_t bytes_ = 0;
};

// Reads until `size` bytes are there or the source ends.
Result<size_t> ReadFully(ByteSource& source, void* buffer, size_t size);

// OK if expected is empty or the same; DATA_LOSS that names both otherwise.
Status CheckDigest(const std::string& what, const std::string& expected, const std::string& found);

}  // namespace esker::import_internal
