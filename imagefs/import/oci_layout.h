// An OCI layout, in a folder or a tar. Private to import.
#pragma once

#include <memory>
#include <string_view>

#include "blob_files.h"
#include "imagefs/image_archive.h"
#include "platform.h"

namespace esker::import_internal {

Result<std::unique_ptr<ImageArchive>> OpenLayout(std::unique_ptr<BlobFiles> files,
                                                 std::string_view name,
                                                 const ArchiveOptions& options);

// The platform that the options ask for.
Result<Platform> WantedPlatform(const ArchiveOptions& options);

}  // namespace esker::import_internal
