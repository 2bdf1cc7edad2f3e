// esker sandbox cp: one file in or out, streaming.
#pragma once

#include <string>

#include "base/status.h"
#include "client.h"

namespace esker::cli {

// One of `from` and `to` is SANDBOX:PATH, the other a local file or "-". A local file appears whole
// or not at all.
Status CopyFile(const GlobalOptions& options, const std::string& from, const std::string& to,
                const std::string& user);

}  // namespace esker::cli
