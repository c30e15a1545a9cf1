// What the kernel knows of a TCP connection (TCP_INFO). Threads: any. Cost: a system call or two.
// Errors: zeros where the kernel does not tell.
#pragma once

#include <cstdint>
#include <string>

namespace deltawire::net {

struct TcpFacts {
  double round_trip_seconds = 0;  ///< the least of the last minutes
  uint64_t sent_bytes = 0;        ///< what was sent again included
  uint64_t sent_again_bytes = 0;
  std::string congestion_control;  ///< "bbr", "cubic", ...
};

TcpFacts TcpFactsOf(int socket);

}  // namespace deltawire::net
