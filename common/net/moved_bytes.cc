#include "common/net/moved_bytes.h"

// netinet/tcp.h cannot be used: its tcp_info ends before the byte counts, and one file cannot
// include both.
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
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

uint64_t QueuedBytesOf(int socket) {
  int bytes = 0;
  return ioctl(socket, SIOCOUTQ, &bytes) == 0 && bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
}

}  // namespace deltawire::net
