// A file call in a child of init that has become the sandbox's user.
#pragma once

#include <sys/types.h>

#include "base/status.h"
#include "base/unique_fd.h"
#include "confine.h"
#include "executor/init_client.h"

namespace esker {

struct FileWorker {
  pid_t pid = 0;
  // SEQPACKET. The worker sends kFileEntries and one kReply, each as a type byte and the body that
  // goes to the node.
  UniqueFd socket;
};

Result<FileWorker> StartFileWorker(const InitFileRequest& request, UniqueFd stream,
                                   const SystemCallFilter& filter);

}  // namespace esker
