// A private certificate authority and its certificates, for a first set-up (`deltawire certs`):
// ECDSA keys on P-256, X.509 v3. Calls take milliseconds. kInvalidArgument is the error for an
// unusable name or key.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace deltawire::security {

struct IssuedCertificate {
  std::string certificate;  ///< PEM
  std::string key;          ///< PEM, without a passphrase: keep it secret
};

/// Makes a self-signed authority with the common name `name`.
StatusOr<IssuedCertificate> MakeAuthority(const std::string& name, std::chrono::days valid);

/// Makes a certificate for servers and clients, signed by `authority`, with the common name `name`.
/// `hosts` (DNS names and IP addresses) are the names that peers may dial it by.
StatusOr<IssuedCertificate> Issue(const IssuedCertificate& authority, const std::string& name,
                                  const std::vector<std::string>& hosts, std::chrono::days valid);

}  // namespace deltawire::security
