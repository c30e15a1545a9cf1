// The credentials that a process presents to peers, and the authorities that it trusts, from one
// TOML file with the keys `ca`, `certificate`, `key`, `token-file` and `server-name`
// (docs/security.md). Both daemons and the tool use it. Thread-safe. Errors name the file and the
// key, and never contain a secret.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/security/reread.h"

namespace deltawire::security {

/// The content of one reading of the files. Immutable; empty strings are unset.
struct CredentialMaterial {
  std::string
      authorities;  ///< PEM certificates that must have issued a peer's; empty: no TLS dialed
  std::string certificate;  ///< PEM chain, the own certificate first; empty: no TLS served
  std::string key;          ///< PEM, the certificate's
  std::string token;        ///< shown with every call
  std::string server_name;  ///< expected in peers' certificates instead of the dialed name
};

struct CredentialPaths {
  std::string ca, certificate, key, token_file;
  std::string server_name;
};

class Credentials {
 public:
  static StatusOr<std::shared_ptr<Credentials>> Load(const std::string& file);
  /// Returns empty credentials, which trust no authority: plaintext.
  static std::shared_ptr<Credentials> None();

  std::shared_ptr<const CredentialMaterial> Now() { return reread_->Now(); }
  Status Reload() { return reread_->Reload(); }

  bool serves_tls() const { return !paths_.certificate.empty(); }
  bool dials_tls() const { return !paths_.ca.empty(); }
  const CredentialPaths& paths() const { return paths_; }
  const std::string& file() const { return file_; }

 private:
  Credentials() = default;
  std::string file_;
  CredentialPaths paths_;  // of the first reading: gRPC watches these files itself
  std::unique_ptr<Reread<CredentialMaterial>> reread_;
};

/// The validity period and the subject of each certificate in `pem`.
struct CertificateDates {
  std::string subject;
  std::chrono::system_clock::time_point from, to;
};
StatusOr<std::vector<CertificateDates>> DatesOf(const std::string& pem);

}  // namespace deltawire::security
