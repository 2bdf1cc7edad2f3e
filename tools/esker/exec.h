// esker sandbox exec.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "client.h"

namespace esker::cli {

struct ExecArguments {
  std::string sandbox, user, cwd;
  std::vector<std::string> argv;
  std::map<std::string, std::string> envs;
  bool interactive = false;  // forward standard input
  bool terminal = false;
  bool shell = false;  // argv joined is a line for the shell
  bool background = false;
  int64_t timeout_ms = 0;
};

// Runs it, copies its output, and gives its exit code. SIGINT and SIGTERM of the CLI are passed on
// to the command; a broken connection is followed again from the last offset.
Result<int> Exec(const GlobalOptions& options, const ExecArguments& arguments);

}  // namespace esker::cli
