#include "archive_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <vector>

#include "base/io.h"
#include "decompress.h"

namespace esker::import_internal {
namespace {

constexpr size_t kCopyBytes = 1u << 20;

std::string TemporaryDirectory(const ArchiveOptions& options) {
  if (!options.temporary_directory.empty()) return options.temporary_directory;
  const char* set = std::getenv("TMPDIR");
  return set != nullptr && *set != '\0' ? set : "/var/tmp";
}

Result<UniqueFd> UnnamedFile(const std::string& directory) {
  UniqueFd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.valid()) return fd;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT) {
    return ErrnoError("make a temporary file in " + directory);
  }
  std::string name = directory + "/esker-archive-XXXXXX";
  fd.reset(::mkostemp(name.data(), O_CLOEXEC));
  if (!fd.valid()) return ErrnoError("make a temporary file in " + directory);
  (void)::unlink(name.c_str());  // it lives as long as its descriptor
  return fd;
}

Status NoRoom(const std::string& directory, const std::string& why) {
  return ResourceExhaustedError("unpack the archive into temporary space: " + why +
                                "; choose another place with --tmp-dir (now " + directory + ")");
}

Status CheckRoom(int fd, const std::string& directory, uint64_t needed) {
  struct statvfs room;
  if (::fstatvfs(fd, &room) != 0) return ErrnoError("see how much room there is in " + directory);
  const uint64_t free = uint64_t{room.f_bavail} * room.f_frsize;
  if (free >= needed) return OkStatus();
  return NoRoom(directory, "at least " + std::to_string(needed) + " bytes are needed, " +
                               std::to_string(free) + " are free");
}

Result<uint64_t> CopyAll(ByteSource& source, int fd, const std::string& directory,
                         const ArchiveOptions& options) {
  std::vector<char> buffer(kCopyBytes);
  for (uint64_t done = 0;;) {
    ESKER_ASSIGN_OR_RETURN(size_t n, source.Read(buffer.data(), buffer.size()));
    if (n == 0) return done;
    if (n > options.max_temporary_bytes - done) {
      return NoRoom(directory, "it has more than the " +
                                   std::to_string(options.max_temporary_bytes) +
                                   " bytes that it may use");
    }
    Status written = WriteFull(fd, buffer.data(), n);
    if (written.code() == Code::kResourceExhausted) return NoRoom(directory, written.message());
    ESKER_RETURN_IF_ERROR(written);
    done += n;
  }
}

Result<FileRange> Spool(ByteSource& source, uint64_t least_bytes, const ArchiveOptions& options) {
  const std::string directory = TemporaryDirectory(options);
  ESKER_ASSIGN_OR_RETURN(UniqueFd fd, UnnamedFile(directory));
  ESKER_RETURN_IF_ERROR(CheckRoom(fd.get(), directory, least_bytes));
  ESKER_ASSIGN_OR_RETURN(uint64_t bytes, CopyAll(source, fd.get(), directory, options));
  return FileRange{std::make_shared<const UniqueFd>(std::move(fd)), 0, bytes};
}

}  // namespace

Result<FileRange> OpenArchiveFile(const std::string& path, const ArchiveOptions& options) {
  ESKER_ASSIGN_OR_RETURN(UniqueFd opened, OpenFile(path, O_RDONLY));
  struct stat status;
  if (::fstat(opened.get(), &status) != 0) return ErrnoError("stat " + path);
  if (S_ISDIR(status.st_mode)) {
    return InvalidArgumentError(path + " is a folder, not an archive; oci:PATH reads a layout");
  }
  if (!S_ISREG(status.st_mode)) {
    std::unique_ptr<ByteSource> pipe = FdSource(opened.get());
    ESKER_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> plain, Decompress(*pipe));
    return Spool(*plain, 0, options);
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  FileRange whole = {std::make_shared<const UniqueFd>(std::move(opened)), 0, size};
  RangeSource stored(whole);
  ESKER_ASSIGN_OR_RETURN(bool compressed, IsCompressed(stored));
  if (!compressed) return whole;
  RangeSource again(whole);
  ESKER_ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> plain, Decompress(again));
  return Spool(*plain, size, options);  // what is compressed hardly ever gets smaller
}

}  // namespace esker::import_internal
