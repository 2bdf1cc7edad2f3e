// Any bytes as an archive of each kind, opened where they lie: indexed, parsed, every layer read.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "imagefs/image_archive.h"

namespace {

void ReadAll(esker::Result<std::unique_ptr<esker::ImageArchive>> archive) {
  if (!archive.ok()) return;
  for (size_t i = 0; i < (*archive)->image().layers.size(); ++i) {
    auto source = (*archive)->OpenLayer(i);
    if (!source.ok()) continue;
    char buffer[4096];
    for (uint64_t total = 0; total < 1 << 20;) {
      auto n = (*source)->Read(buffer, sizeof(buffer));
      if (!n.ok() || *n == 0) break;
      total += *n;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = ::memfd_create("archive", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  esker::ArchiveOptions options = {.platform = "linux/amd64", .temporary_directory = "/dev/shm"};
  options.max_temporary_bytes = 1 << 20;
  ReadAll(esker::ImageArchive::OpenDockerArchive(path, "", options));
  ReadAll(esker::ImageArchive::OpenDockerArchive(path, "x:1", options));
  ReadAll(esker::ImageArchive::OpenOciArchive(path, "", options));
  ::close(fd);
  return 0;
}
