// TCP sockets of programs that direct daemons; weights travel by common/net. Owner: the caller, of
// a socket. Threads: any. Cost: a name lookup and some system calls. Errors name the address or
// host.
#pragma once

#include <chrono>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace deltawire {

/// Connects a blocking socket to "HOST:PORT" within `timeout`; the name lookup comes on top.
/// kNotFound: the host has no address. kFailedPrecondition: nothing listens on the port.
/// kDeadlineExceeded: no answer.
StatusOr<UniqueFd> ConnectTcp(const std::string& address, std::chrono::milliseconds timeout);
/// A blocking socket that listens there; port 0 lets the kernel choose.
StatusOr<UniqueFd> ListenTcp(const std::string& address);
/// Makes a blocking read or write fail with EAGAIN after `timeout`.
void SetTimeout(int fd, std::chrono::milliseconds timeout);

}  // namespace deltawire
