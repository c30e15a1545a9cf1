// What a process shows to its peers and whom it believes, from one TOML file with the keys `ca`,
// `certificate`, `key`, `token-file` and `server-name` (docs/security.md). Used by both daemons and
// the tool. Owner: shared. Threads: every method from any. Cost: Reread's.
// Errors name the file and the key; what a secret file holds is in no message.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/security/reread.h"

namespace deltawire::security {

/// One reading of the files; never changes. Empty strings: not given.
struct CredentialMaterial {
  std::string
      authorities;  ///< PEM certificates that a peer's must come from; empty: no TLS dialled
  std::string certificate;  ///< PEM chain, the own certificate first; empty: no TLS served
  std::string key;          ///< PEM, the certificate's
  std::string token;        ///< shown with every call
  std::string server_name;  ///< expected in peers' certificates instead of the name dialled
};

struct CredentialPaths {
  std::string ca, certificate, key, token_file;
  std::string server_name;
};

class Credentials {
 public:
  static StatusOr<std::shared_ptr<Credentials>> Load(const std::string& file);
  /// Credentials that show nothing and believe nobody: plaintext.
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
  CredentialPaths paths_;  // as at the first reading: gRPC watches these files itself
  std::unique_ptr<Reread<CredentialMaterial>> reread_;
};

/// When each certificate of `pem` begins and ends to be valid, with its subject.
struct CertificateDates {
  std::string subject;
  std::chrono::system_clock::time_point from, to;
};
StatusOr<std::vector<CertificateDates>> DatesOf(const std::string& pem);

}  // namespace deltawire::security
