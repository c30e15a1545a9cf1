// TCP sockets for programs that direct daemons; weights travel over common/net. Errors name the
// address or host.
#pragma once

#include <chrono>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace deltawire {

/// Connects a blocking socket to "HOST:PORT" within `timeout`, plus the time of the name lookup.
/// Fails with kNotFound if the host has no address, kFailedPrecondition if no process listens on
/// the port, and kDeadlineExceeded without an answer.
StatusOr<UniqueFd> ConnectTcp(const std::string& address, std::chrono::milliseconds timeout);
/// Returns a blocking listening socket. With port 0 the kernel chooses.
StatusOr<UniqueFd> ListenTcp(const std::string& address);
/// Makes a blocking read or write fail with EAGAIN after `timeout`.
void SetTimeout(int fd, std::chrono::milliseconds timeout);

}  // namespace deltawire
