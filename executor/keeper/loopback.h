// A network namespace with nothing but its loopback interface. System calls only, so that it can be
// done between clone and execve.
#pragma once

namespace esker::keeper {

// In the calling process's network namespace: brings lo up and opens low ports and ping to all ids.
// The namespace belongs to the host's user namespace, so a sandbox's root has no capability in it.
// nullptr, or what failed (with errno). `proc` is from OpenOwnProc.
const char* SetUpLoopback(int proc);

// An instance of /proc that is mounted nowhere, or -1 with errno. The settings of all network
// namespaces have the same names, so in one instance they make one hash chain, and to find one in
// the keeper's would take longer with every sandbox that lives. Keep one for a few namespaces only.
int OpenOwnProc();

}  // namespace esker::keeper
