// A diagnosis of a daemon's control address: why a program gets no service there, and the remedy.
// gRPC only reports that a connection failed, so these functions dial the address themselves: up to
// three TCP connections and two calls, each bounded by `limit`. Unknown facts are left out of the
// text.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/security/credentials.h"
#include "common/security/tls_probe.h"

namespace deltawire {

/// A program's names for its own options, in messages to its user.
struct DialWords {
  /// The way to pass credentials, e.g. "pass --credentials FILE".
  std::string_view pass_credentials = "pass credentials";
  std::string_view credentials = "credentials";
  /// The way to pass another address; "" if the program has only one way.
  std::string pass_address = "check the address";
  std::string_view more_time = "a longer timeout allows more";
};

/// A control address as a program dialed it.
struct DialedPeer {
  std::string_view who;  ///< "sender" or "receiver"
  std::string address;   ///< "host:port"
  security::Credentials& credentials;
  DialWords words;
};

enum class PortKind : uint8_t {
  kUnknown,  ///< it was not asked, or did not answer
  kGrpc,     ///< HTTP/2 in plaintext
  kGrpcTls,  ///< HTTP/2 in TLS
  kTls,      ///< TLS, but no HTTP/2 in it
  kBulk,     ///< deltawire's port for weights
  kHttp,     ///< HTTP/1, e.g. a port for metrics
  kOther,
};

/// The facts that this machine finds at a control address.
struct PortFacts {
  Status connected;  ///< of a TCP connection; codes as in ConnectTcp
  PortKind kind = PortKind::kUnknown;
  std::optional<security::PeerTls> tls;  ///< of kGrpcTls and kTls
};
PortFacts LookAtPort(const DialedPeer& peer, std::chrono::milliseconds limit);

struct Diagnosis {
  std::string why;      ///< "nothing listens there (connection refused)"
  std::string remedy;   ///< "start deltawire-sender there, or pass ..."
  bool absent = false;  ///< nothing listens there
};

Diagnosis WhyNotReached(const PortFacts& facts, const DialedPeer& peer);
/// Returns why a peer answered UNIMPLEMENTED: it is a daemon of the other role, a daemon of an
/// older release, or another program.
Diagnosis WhyUnimplemented(const DialedPeer& peer, std::chrono::milliseconds limit);

/// Returns "sender 10.0.0.1:7700: WHY; REMEDY".
std::string ToString(const Diagnosis& diagnosis, const DialedPeer& peer);

}  // namespace deltawire
