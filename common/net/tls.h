// TLS 1.3 contexts for bulk streams, made from a process's credentials and again when those are
// reread. Running streams keep their context. Thread-safe. Errors are OpenSSL's, with the
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

/// Immutable, as OpenSSL requires of a context that several streams share.
struct TlsContext {
  std::shared_ptr<SSL_CTX> context;
  std::string server_name;  ///< a client's: expected in the peer's certificate; empty: the host
};

class Tls {
 public:
  enum class Side { kServer, kClient };

  /// With `require_certificate`, a server ends the handshake of a client without a certificate.
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

/// Returns the common name and the alternative names of the peer's verified certificate; none
/// without one.
std::vector<std::string> PeerNames(const SSL* ssl);

/// Counts a stream for KernelTls(). Call it when the stream's handshake has ended.
void NoteKernelTls(const SSL* ssl);
/// Returns for displays whether the kernel encrypts this process's streams: "yes, what is sent", or
/// "no" and the reason.
std::string KernelTls();

/// Returns OpenSSL's errors of this thread as one text, and empties the queue.
std::string TlsErrors(const SSL* ssl);

}  // namespace deltawire::net
