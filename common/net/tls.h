// TLS 1.3 contexts for bulk streams, made from a process's credentials, and made anew when those
// were read again; streams that run keep the context that they began with.
// Owner: shared by the streams. Threads: every method from any. Errors: OpenSSL's, with the
// credentials' file.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/security/credentials.h"

namespace deltawire::net {

/// Never changes after it was made, as OpenSSL wants it of a context that several streams share.
struct TlsContext {
  std::shared_ptr<SSL_CTX> context;
  std::string server_name;  ///< of a client: expected in the peer's certificate; empty: the host
};

class Tls {
 public:
  enum class Side { kServer, kClient };

  /// A server's, with `require_certificate`, ends the handshake of a client that shows none.
  static StatusOr<std::shared_ptr<Tls>> Create(std::shared_ptr<security::Credentials> credentials,
                                               Side side, bool require_certificate = false);

  StatusOr<std::shared_ptr<const TlsContext>> Now();

 private:
  Tls(std::shared_ptr<security::Credentials> credentials, Side side, bool require_certificate)
      : credentials_(std::move(credentials)),
        side_(side),
        require_certificate_(require_certificate) {}
  StatusOr<std::shared_ptr<const TlsContext>> Make(const security::CredentialMaterial& m) const;

  const std::shared_ptr<security::Credentials> credentials_;
  const Side side_;
  const bool require_certificate_;
  Mutex mu_;
  std::shared_ptr<const security::CredentialMaterial> made_of_;
  std::shared_ptr<const TlsContext> context_;
};

/// The common name and the alternative names of the peer's verified certificate; none without one.
std::vector<std::string> PeerNames(const SSL* ssl);

/// Counts a stream for KernelTls(). To be called when its handshake has ended.
void NoteKernelTls(const SSL* ssl);
/// Whether the kernel encrypts this process's streams, for displays: "yes, what is sent", or "no"
/// and why.
std::string KernelTls();

/// OpenSSL's errors of this thread as one text for a message; empties the queue.
std::string TlsErrors(const SSL* ssl);

}  // namespace deltawire::net
