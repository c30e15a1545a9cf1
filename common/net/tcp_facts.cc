#include "common/net/tcp_facts.h"

// See moved_bytes.cc for the choice of this header.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstring>

namespace deltawire::net {
namespace {

constexpr size_t kMostName = 16;  // TCP_CA_NAME_MAX of the kernel
constexpr double kMicro = 1e-6;

}  // namespace

TcpFacts TcpFactsOf(int socket) {
  TcpFacts facts;
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return facts;
  // A field that an older kernel does not fill in stays 0. An unmeasured round trip is all ones.
  const uint32_t least = info.tcpi_min_rtt == UINT32_MAX ? 0 : info.tcpi_min_rtt;
  facts.round_trip_seconds = kMicro * (least != 0 ? least : info.tcpi_rtt);
  facts.sent_bytes = info.tcpi_bytes_sent;
  facts.sent_again_bytes = info.tcpi_bytes_retrans;
  char name[kMostName] = "";
  size = sizeof name;
  if (getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0) {
    facts.congestion_control.assign(name, strnlen(name, sizeof name));
  }
  return facts;
}

}  // namespace deltawire::net
