// TCP sockets for the tool's own measurements; weights travel by common/net. Owner: none,
// functions. Threads: any. Cost: a system call or two. Errors: kUnavailable says the address, and
// what the system says.
#pragma once

#include <chrono>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace deltawire::cli {

/// A blocking socket that is connected to "HOST:PORT", within `timeout`.
StatusOr<UniqueFd> ConnectTcp(const std::string& address, std::chrono::milliseconds timeout);
/// A blocking socket that listens there; port 0 lets the kernel choose.
StatusOr<UniqueFd> ListenTcp(const std::string& address);
/// Makes a blocking read or write fail with EAGAIN after `timeout`.
void SetTimeout(int fd, std::chrono::milliseconds timeout);

}  // namespace deltawire::cli
