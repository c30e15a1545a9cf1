// What a peer's port says when it is asked for TLS: whether it speaks TLS at all, its certificate,
// and why that is not believed, or why the peer does not believe ours. gRPC says of all this only
// that a handshake failed. Owner: none, a function. Threads: any. Cost: a handshake and one read.
// Errors: what fails otherwise is a kUnavailable with OpenSSL's reason.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/security/credentials.h"

namespace deltawire::security {

struct PeerTls {
  CertificateDates certificate;  ///< the peer's own
  std::string issuer;
  std::vector<std::string> names;  ///< hosts and addresses that it is for
  std::string disbelieved;         ///< why we do not believe it; empty: we do
  std::string remedy;              ///< what to do about that
  std::string refused;             ///< why the peer does not believe us; empty: it does
  bool http2 = false;              ///< it agreed to speak HTTP/2
};

/// `fd` is connected to `host`, blocking, with timeouts. REQUIRES: nothing was sent there yet.
/// kFailedPrecondition: it does not speak TLS.
StatusOr<PeerTls> ProbeTls(int fd, const std::string& host, const CredentialMaterial& own);

}  // namespace deltawire::security
