#include "blob_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/io.h"
#include "byte_source.h"
#include "oci_json.h"

namespace esker::import_internal {
namespace {

class FolderFilesImpl final : public BlobFiles {
 public:
  explicit FolderFilesImpl(UniqueFd root) : root_(std::move(root)) {}
  Result<FileRange> Find(const std::string& path) const override {
    ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenBeneath(root_.get(), path, O_RDONLY | O_NONBLOCK));
    struct stat status;
    if (::fstat(fd.get(), &status) != 0) return ErrnoError("stat " + path);
    if (!S_ISREG(status.st_mode)) return InvalidArgumentError(path + " is not a regular file");
    return FileRange{std::make_shared<const UniqueFd>(std::move(fd)), 0,
                     static_cast<uint64_t>(status.st_size)};
  }

 private:
  UniqueFd root_;
};

}  // namespace

Result<size_t> RangeSource::Read(void* buffer, size_t size) {
  size = std::min<uint64_t>(size, range_.size - given_);
  if (size == 0) return size_t{0};
  for (;;) {
    const ssize_t n =
        ::pread(range_.file->get(), buffer, size, static_cast<off_t>(range_.offset + given_));
    if (n > 0) {
      given_ += static_cast<uint64_t>(n);
      return static_cast<size_t>(n);
    }
    if (n == 0) {
      return DataLossError("the file ends " + std::to_string(range_.size - given_) +
                           " bytes too early");
    }
    if (errno != EINTR) return ErrnoError("read the image");
  }
}

Result<std::string> BlobFiles::ReadSmall(const std::string& path) const {
  ESKER_ASSIGN_OR_RETURN(FileRange range, Find(path));
  if (range.size > kMaxOciJsonBytes) {
    return InvalidArgumentError(path + " is larger than " + std::to_string(kMaxOciJsonBytes) +
                                " bytes");
  }
  std::string text(range.size, '\0');
  RangeSource source(std::move(range));
  Result<size_t> n = ReadFully(source, text.data(), text.size());
  if (!n.ok()) return std::move(n).status().Wrap(path);
  return text;
}

std::unique_ptr<BlobFiles> FolderFiles(UniqueFd root) {
  return std::make_unique<FolderFilesImpl>(std::move(root));
}

}  // namespace esker::import_internal
