// A network namespace with nothing but its loopback interface. System calls only, so that it can be
// done between clone and execve.
#pragma once

namespace esker::keeper {

// In the calling process's network namespace: brings lo up and opens low ports and ping to all ids.
// The namespace belongs to the host's user namespace, so a sandbox's root has no capability in it.
// nullptr, or what failed (with errno). Needs /proc.
const char* SetUpLoopback();

}  // namespace esker::keeper
