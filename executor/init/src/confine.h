// What every child of init gives up before it does anything for a user: signals, capabilities,
// system calls, identity.
#pragma once

#include <linux/filter.h>

#include <cstdint>

#include "accounts.h"
#include "base/status.h"

namespace esker {

// Compiled system call filter; empty only when init was told that there is none.
struct SystemCallFilter {
  const sock_filter* instructions = nullptr;
  uint16_t count = 0;
};

// Capabilities that a child may ever have (bit n = capability n): the usual set for containers
// without CAP_MKNOD.
uint64_t ContainerCapabilities();

// All signals at their defaults and none blocked.
void ResetSignals();

// Becomes `account` for good. The filter goes in while CAP_SYS_ADMIN is still held, so that
// no_new_privs stays off and sudo works. uid 0 keeps ContainerCapabilities(), others none.
Status Confine(const Account& account, const SystemCallFilter& filter);

}  // namespace esker
