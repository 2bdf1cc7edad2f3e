// One archive file, readable by offset. Private to import.
#pragma once

#include <string>

#include "blob_files.h"
#include "imagefs/image_archive.h"

namespace esker::import_internal {

// A plain file is used where it lies. A compressed one, or what comes through a pipe, goes to an
// unnamed temporary file first: its room is checked beforehand as far as its size is known.
Result<FileRange> OpenArchiveFile(const std::string& path, const ArchiveOptions& options);

}  // namespace esker::import_internal
