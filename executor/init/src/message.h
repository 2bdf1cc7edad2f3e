// Sending and receiving without allocating for each message: init is idle most of its life and must
// be small then.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace esker {

// The next message, valid until the next call. 0, or an errno: EAGAIN when there is none,
// ECONNRESET when the peer is gone, EMSGSIZE when it was cut.
int ReceiveInto(int socket, std::string_view& bytes, std::vector<UniqueFd>& fds);
// Gives the buffer's pages back when the message was a large one.
void ReleaseReceiveBuffer(size_t used);
// 0, or an errno: EAGAIN when the peer has to read first.
int SendFrom(int socket, std::string_view bytes, const std::vector<UniqueFd>& fds);

}  // namespace esker
