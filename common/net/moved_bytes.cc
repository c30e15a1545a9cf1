#include "common/net/moved_bytes.h"

// Not netinet/tcp.h, whose tcp_info ends before the counts of bytes; the two cannot be included in
// one file.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace deltawire::net {

MovedBytes MovedBytesOf(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      size < offsetof(tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received) {
    return {};
  }
  return {.received = info.tcpi_bytes_received, .acknowledged = info.tcpi_bytes_acked};
}

}  // namespace deltawire::net
