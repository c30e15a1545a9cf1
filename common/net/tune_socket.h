// The TCP options of bulk sockets: those of every socket, and those that depend on the link to the
// peer. If the kernel rejects an option, only speed suffers, so nothing here fails. The kernel's
// limits are read once per process.
#pragma once

#include <cstdint>
#include <string>

#include "common/net/link_plan.h"

namespace deltawire::net {

/// A daemon's options for bulk sockets.
struct SocketChoice {
  /// "auto": `bbr` on a far link, if the kernel permits it; "system": the kernel's default; else
  /// the algorithm's name.
  std::string congestion_control = "auto";
};

enum class SocketEnd : uint8_t { kSender, kReceiver };

/// Sets a connected socket's options: no Nagle, the kernel's keepalive for peers that vanish
/// silently, and congestion control. If both ends are on one host, it limits the in-flight bytes,
/// so that the kernel's copies find them in the second-level cache.
void TuneSocket(int socket, const SocketChoice& choice);

/// Sizes a socket's memory for its part in a pull of `streams`. A receiver's socket must not be
/// connected yet, since the handshake carries the window's scale.
void FitSocket(int socket, SocketEnd end, const LinkFigures& link, uint16_t streams);

}  // namespace deltawire::net
