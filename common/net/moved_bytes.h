// How many bytes a TCP connection has moved as far as the kernel knows, which is more than the
// program has read or has got rid of. Threads: any. Cost: a system call. Errors: 0 where the kernel
// does not tell.
#pragma once

#include <cstdint>

namespace deltawire::net {

struct MovedBytes {
  uint64_t received = 0;
  uint64_t acknowledged = 0;  ///< sent, and in the peer's kernel
};

MovedBytes MovedBytesOf(int socket);

/// What was written to the socket and is not in the peer's kernel yet.
uint64_t QueuedBytesOf(int socket);

}  // namespace deltawire::net
