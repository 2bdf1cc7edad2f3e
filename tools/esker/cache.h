// esker cache ls, prune, verify
#pragma once

#include "verbs.h"

namespace esker::cli {

void AddCache(CLI::App& app, GlobalOptions& options, Chosen& chosen);

}  // namespace esker::cli
