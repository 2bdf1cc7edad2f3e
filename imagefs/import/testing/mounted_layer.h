// An imported layer as files that the kernel can mount; for privileged tests.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "../../erofs/testing/kernel_mount.h"
#include "base/io.h"
#include "import_fixture.h"

namespace esker::testing {

struct LayerFiles {
  std::string metadata;
  std::string data;  // "" if there is none
};

// Writes both blobs below `directory`.
inline Result<LayerFiles> WriteLayerFiles(const Store& store, const MemoryLookup& lookup,
                                          const ImageLayer& layer, const std::string& directory) {
  LayerFiles files;
  auto write = [&](const BlobId& id, const std::string& path) -> Status {
    ESKER_ASSIGN_OR_RETURN(const std::string bytes, lookup.ReadBlob(store, id));
    ESKER_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC, 0600));
    return WriteFull(fd.get(), bytes.data(), bytes.size());
  };
  files.metadata = directory + "/" + layer.metadata.ToHex() + ".metadata";
  ESKER_RETURN_IF_ERROR(write(layer.metadata, files.metadata));
  if (layer.has_data()) {
    files.data = directory + "/" + layer.data.ToHex() + ".data";
    ESKER_RETURN_IF_ERROR(write(layer.data, files.data));
  }
  return files;
}

// How a child process reaches a descriptor of ours.
inline std::string PathOfDescriptor(int fd) {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd);
}

}  // namespace esker::testing
