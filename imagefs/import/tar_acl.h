// POSIX ACLs as tar writes them (text) and as the kernel keeps them (xattr). Private to import.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace esker::import_internal {

// "user::rwx,user:lisa:rw-:1001,..." to the value of system.posix_acl_access
// (linux/posix_acl_xattr.h). Gives "" for an ACL that says no more than a mode. A name without a
// number is INVALID_ARGUMENT: whom it means only the machine knows that wrote it.
Result<std::string> AclTextToXattr(std::string_view text);

}  // namespace esker::import_internal
