// Starting a command: pipes or a terminal, a cgroup of its own, a child, and what the child does up
// to execve.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "confine.h"
#include "executor/init_client.h"

namespace esker {

// What the launcher knows for all commands. Descriptors stay the owner's.
struct LaunchContext {
  int cgroup_fd = -1;  // the sandbox's delegated cgroup2 directory
  SystemCallFilter filter;
  rlimit file_limit = {};  // RLIMIT_NOFILE that commands get
};

struct Launched {
  pid_t pid = 0;
  UniqueFd in, out, err;  // the node's ends; with a terminal, in and err are empty and out is it
  // Readable when execve has happened (end of file) or failed (one LaunchFailure).
  UniqueFd progress;
};

// What a child that cannot execute its command writes into the progress pipe.
struct LaunchFailure {
  int32_t exit_code = 0;  // 126 or 127
  char text[480] = {};    // NUL-terminated
};

// The directory of a command below LaunchContext::cgroup_fd.
std::string CommandCgroup(const std::string& command_id);

// RESOURCE_EXHAUSTED (EAGAIN) when the sandbox may have no more processes. Nothing is left behind
// on failure.
Result<Launched> Launch(const InitCommandSpec& spec, const LaunchContext& context);

// Child side: runs spec's command in this process or reports why not. `in`, `out`, `err` become
// 0, 1, 2; `terminal` says that `in` is a tty to be controlled by a new session.
struct ChildEnds {
  int in = -1, out = -1, err = -1;
  bool terminal = false;
  int progress = -1;
};
[[noreturn]] void RunChild(const InitCommandSpec& spec, const ChildEnds& ends,
                           const LaunchContext& context);

}  // namespace esker
