// What both kinds of store share: how a volume looks and how it is handed out.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"
#include "executor/upper_store.h"

namespace esker {

// Staging names: CheckIdentifier refuses a leading dot, so no volume can have one.
std::string StagingName(std::string_view id);
bool IsStagingName(std::string_view name);

// Makes those of upper/ and work/ that are missing in the volume.
Status MakeVolumeDirectories(int volume_fd);
// A descriptor of the volume for the caller (see UpperStore). NOT_FOUND names the id.
Result<UniqueFd> OpenDetached(int parent_fd, std::string_view id);
// Renames staging to final; ALREADY_EXISTS names the id.
Status Publish(int parent_fd, std::string_view id);

// Total and available bytes of the file system of `fd`; `what` names it in errors.
Result<UpperSpace> FilesystemSpace(int fd, const std::string& what);

// RESOURCE_EXHAUSTED when the host file system below `directory_fd` is about to fill up. A sparse
// pool must never meet that: it would see it as an I/O error and go read-only for every sandbox.
Status CheckHostSpace(int directory_fd, const std::string& directory);

}  // namespace esker
