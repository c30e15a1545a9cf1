// The kernel's facts about a TCP connection (TCP_INFO): a system call or two, zeros if the kernel
// does not report them.
#pragma once

#include <cstdint>
#include <string>

namespace deltawire::net {

struct TcpFacts {
  double round_trip_seconds = 0;  ///< the least of the last minutes
  uint64_t sent_bytes = 0;        ///< including retransmissions
  uint64_t sent_again_bytes = 0;
  std::string congestion_control;  ///< "bbr", "cubic", ...
};

TcpFacts TcpFactsOf(int socket);

}  // namespace deltawire::net
