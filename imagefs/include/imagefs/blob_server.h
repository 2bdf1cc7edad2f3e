// The blob server: one FUSE file per data blob, served from cache and store (program
// esker-imagefs).
//
// The keeper holds the FUSE session: it opens /dev/fuse, mounts it, and starts
//   esker-imagefs --store DIR --cache DIR --fuse-fd 3 --state FILE --control SOCKET
// with the descriptor as fd 3. A new server on the same descriptor takes over from a dead one at
// any point: it needs no INIT from the kernel and no memory of the old one, and writes
// FUSE_NOTIFY_RESEND to get the requests that one had taken (Linux 6.9). The INIT request is saved
// in FILE for diagnosis. Start the new server when the old one is dead. SIGKILL is safe at any
// instant; SIGTERM leaves reads that wait for the store to the next server, and may take long on a
// store that hangs. docs/decisions/0003-blob-server-takeover.md.
//
// The file system has a flat root. A file's name is a blob id in hex; its node id is the first 8
// bytes of the id (big-endian), so a new server needs no memory of lookups. The content is the
// blob's address space (imagefs/types.h). Reads verify each chunk's SHA-256 before any byte is
// returned; store trouble is retried for a bounded time, then EIO for that read; nothing wrong is
// ever cached.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker {

struct BlobServerOptions {
  std::string store_directory;
  std::string cache_directory;
  std::string state_file;      // keeps the saved INIT
  std::string control_socket;  // see imagefs/blob_server_client.h; "" for none
  int fuse_fd = 3;
  int threads = 8;
  int64_t retry_deadline_ms = 20'000;  // of one read against a failing store
};
// Serves until the session ends (unmount) or SIGTERM, and ends the process with 0 then; returns
// only when it could not begin. For a process of its own: it blocks SIGTERM, SIGINT and SIGUSR1
// (which logs the counters) and handles SIGUSR2.
Status RunBlobServer(const BlobServerOptions& options);

// Mounts a new FUSE session for the blob server at `mountpoint` in the caller's mount namespace;
// returns the /dev/fuse descriptor. Options: allow_other, default_permissions, ro, max_read 1 MiB.
Result<UniqueFd> MountBlobFs(const std::string& mountpoint);

}  // namespace esker
