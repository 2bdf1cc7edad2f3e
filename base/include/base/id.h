// Identifiers: random, printable, safe in file names.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace esker {

// 20 characters of [a-z0-9] from getrandom(2), about 103 bits. Thread-safe.
std::string RandomId();
// "sb-k3f9..."; prefix names the kind of object.
std::string RandomId(std::string_view prefix);
// OK for 1 to 64 bytes of [A-Za-z0-9_.-], not starting with '.' or '-'; else INVALID_ARGUMENT
// that names `what`.
Status CheckIdentifier(std::string_view what, std::string_view id);
// The kernel's boot id (/proc/sys/kernel/random/boot_id), read once.
const std::string& BootId();

}  // namespace esker
