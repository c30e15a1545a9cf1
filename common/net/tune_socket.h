// The TCP options of bulk sockets: what holds for every one, and what goes by the way to the peer.
// An option that the kernel refuses costs speed only, so nothing here fails.
// Threads: any. Cost: a few system calls. The kernel's limits are read once for the process.
#pragma once

#include <cstdint>
#include <string>

#include "common/net/link_plan.h"

namespace deltawire::net {

/// A daemon's options for bulk sockets.
struct SocketChoice {
  /// "auto": `bbr` on a far link, if the kernel lets this process have it; "system": the kernel's
  /// choice; else the algorithm's name.
  std::string congestion_control = "auto";
};

enum class SocketEnd : uint8_t { kSender, kReceiver };

/// For a connected socket: no Nagle, the kernel's keepalive for peers that vanish silently, and
/// congestion control. If both ends are on one host, only little data may be in flight, so that the
/// kernel's copies in and out find it in the second-level cache.
void TuneSocket(int socket, const SocketChoice& choice);

/// Fits the memory of a socket to its part in a pull of `streams`. A receiver's must not be
/// connected yet, since the peer learns of the window's scale in the handshake.
void FitSocket(int socket, SocketEnd end, const LinkFigures& link, uint16_t streams);

}  // namespace deltawire::net
