// Files of an image by name: in a folder, or members of a tar. Private to import.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "imagefs/import.h"

namespace esker::import_internal {

// A file, or a part of one.
struct FileRange {
  std::shared_ptr<const UniqueFd> file;
  uint64_t offset = 0;
  uint64_t size = 0;
};

// Reads a range from its start. A file that became shorter is DATA_LOSS.
class RangeSource final : public ByteSource {
 public:
  explicit RangeSource(FileRange range) : range_(std::move(range)) {}
  Result<size_t> Read(void* buffer, size_t size) override;

 private:
  FileRange range_;
  uint64_t given_ = 0;
};

// Thread-safe. Names are hostile: nothing outside the folder or archive is ever opened.
class BlobFiles {
 public:
  virtual ~BlobFiles() = default;
  // NOT_FOUND; PERMISSION_DENIED (leads out); INVALID_ARGUMENT (not a regular file).
  virtual Result<FileRange> Find(const std::string& path) const = 0;
  // The whole of a small file (JSON).
  Result<std::string> ReadSmall(const std::string& path) const;
};

std::unique_ptr<BlobFiles> FolderFiles(UniqueFd root);
// Indexes the members of an uncompressed tar. Links between members are followed inside the
// archive only. DATA_LOSS, INVALID_ARGUMENT (a sparse member, a million members).
Result<std::unique_ptr<BlobFiles>> TarFiles(FileRange archive);

}  // namespace esker::import_internal
