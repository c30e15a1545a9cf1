// A probe of a peer's port: whether it speaks TLS, its certificate, and why either end does not
// trust the other's. gRPC only says that a handshake failed. Costs a handshake and one read. Other
// failures are kUnavailable with OpenSSL's reason.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/security/credentials.h"

namespace deltawire::security {

struct PeerTls {
  CertificateDates certificate;  ///< the peer's own
  std::string issuer;
  std::vector<std::string> names;  ///< hosts and addresses that the certificate is for
  std::string disbelieved;         ///< why we do not trust it; empty: we do
  std::string remedy;              ///< what to do about that
  std::string refused;             ///< why the peer does not trust us; empty: it does
  bool http2 = false;              ///< the peer agreed to speak HTTP/2
};

/// `fd` is connected to `host`, blocking, with timeouts. Returns kFailedPrecondition if the peer
/// does not speak TLS. REQUIRES: nothing was sent yet.
StatusOr<PeerTls> ProbeTls(int fd, const std::string& host, const CredentialMaterial& own);

}  // namespace deltawire::security
