// The list that `image sync` works through.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace esker::cli {

struct SyncLine {
  size_t number = 0;  // in the file, from 1
  std::string source;
  std::string name;  // with its tag
};

// One image a line: `SOURCE NAME[:TAG]`, blanks between; the last word is the name, so a path may
// have blanks. Empty lines and what follows a `#` at the beginning or behind a blank are nothing.
// INVALID_ARGUMENT names the line; two lines may not give the same name.
Result<std::vector<SyncLine>> ParseSyncList(std::string_view text);

}  // namespace esker::cli
