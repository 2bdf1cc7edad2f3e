// Unix sockets that carry messages and descriptors (SOCK_SEQPACKET, SCM_RIGHTS).
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace esker {

// Largest message that SendMessage takes, bytes. Larger payloads go by a passed descriptor.
inline constexpr size_t kMaxSocketMessage = 160 * 1024;
inline constexpr size_t kMaxSocketFds = 64;

struct SocketMessage {
  std::string data;
  std::vector<UniqueFd> fds;
};

// A bound, listening SEQPACKET socket, non-blocking, file mode 0600. A stale socket file (nobody
// accepts on it) is replaced; a live one gives FAILED_PRECONDITION (EADDRINUSE). Paths longer than
// sun_path work: the directory is opened and bound through /proc/self/fd.
Result<UniqueFd> ListenSeqpacket(const std::string& path);
Result<UniqueFd> ConnectSeqpacket(const std::string& path);
// A connected pair, close-on-exec.
Result<std::pair<UniqueFd, UniqueFd>> SeqpacketPair();

// One message, whole or not at all. On a blocking socket waits; on a non-blocking one UNAVAILABLE
// (EAGAIN) when full. UNAVAILABLE (EPIPE) when the peer is gone; never raises SIGPIPE.
Status SendMessage(int socket, std::string_view data, const std::vector<int>& fds = {});
// The next message. UNAVAILABLE with EAGAIN when a non-blocking socket has none; UNAVAILABLE with
// ECONNRESET when the peer closed. A message cut by the limits is DATA_LOSS. Received descriptors
// are close-on-exec.
Result<SocketMessage> ReceiveMessage(int socket);

struct PeerCredentials {
  pid_t pid;
  uid_t uid;
  gid_t gid;
};
Result<PeerCredentials> GetPeerCredentials(int socket);

// Waits until fd is readable (or has hung up) for at most timeout_ms (-1: for ever);
// DEADLINE_EXCEEDED if it does not happen.
Status WaitReadable(int fd, int timeout_ms);

}  // namespace esker
