// Children of the keeper other than sandboxes: short-lived helpers and the blob server.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace esker::keeper {

// Forks (the keeper has one thread, so the child may do anything), ties the child to the keeper's
// life, and ends it with what `body` returns.
Result<Process> ForkChild(const std::function<int()>& body);

// Executes a program with `fd` as its descriptor 3, tied to the keeper's life. Standard streams are
// the keeper's.
Result<Process> StartServer(const std::vector<std::string>& argv, int fd);

// Reaps the child when it ends and then calls `ended` with its wait status. The loop owns it.
Status ReapWhenEnded(EventLoop& loop, Process process, std::function<void(int status)> ended);

}  // namespace esker::keeper
