// What `docker save` wrote before it wrote OCI layouts. Private to import.
// https://github.com/moby/docker-image-spec (v1.0 to v1.3)
#pragma once

#include <memory>
#include <string_view>

#include "blob_files.h"
#include "imagefs/image_archive.h"

namespace esker::import_internal {

// By manifest.json (Docker 1.10 to 24, podman, and many builders).
Result<std::unique_ptr<ImageArchive>> OpenDockerManifest(std::unique_ptr<BlobFiles> files,
                                                         std::string_view name,
                                                         const ArchiveOptions& options);
// By `repositories` and a folder per layer (before 1.10). Each layer is read twice, since nothing
// in such an archive says its digest.
Result<std::unique_ptr<ImageArchive>> OpenDockerRepositories(std::unique_ptr<BlobFiles> files,
                                                             std::string_view name,
                                                             const ArchiveOptions& options);

}  // namespace esker::import_internal
