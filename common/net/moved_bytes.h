// The byte counts that the kernel keeps of a TCP connection, which can be ahead of the program's
// reads and behind its writes. One system call; 0 if the kernel does not report them.
#pragma once

#include <cstdint>

namespace deltawire::net {

struct MovedBytes {
  uint64_t received = 0;
  uint64_t acknowledged = 0;  ///< sent, and in the peer's kernel
};

MovedBytes MovedBytesOf(int socket);

/// Returns the bytes that were written to the socket and are not in the peer's kernel yet.
uint64_t QueuedBytesOf(int socket);

}  // namespace deltawire::net
