// Mounting an image by the kernel as the product does (file-backed, data file as device=), for
// tests. Needs CAP_SYS_ADMIN. The mount is detached: it is in no mount table and goes away with fd.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker::erofs {

// data_path may be empty. The kernel's own words are in the error.
Result<UniqueFd> MountErofs(const std::string& metadata_path, const std::string& data_path);

// A read-only, detached overlay of detached mounts, the uppermost first.
Result<UniqueFd> MountOverlay(const std::vector<int>& layers);

}  // namespace esker::erofs
