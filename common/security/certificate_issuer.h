// Makes a private certificate authority and certificates from it, for a first set-up
// (`deltawire certs`): ECDSA keys on P-256, X.509 v3. Pure functions over OpenSSL; thread-safe.
// Cost: milliseconds. Errors: kInvalidArgument for a name or key that cannot be used.
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

/// An authority that signs itself. `name` becomes its common name.
StatusOr<IssuedCertificate> MakeAuthority(const std::string& name, std::chrono::days valid);

/// A certificate for servers and clients, signed by `authority`. `name` becomes the common name;
/// `hosts` (DNS names and IP addresses) are the names that peers may dial it by.
StatusOr<IssuedCertificate> Issue(const IssuedCertificate& authority, const std::string& name,
                                  const std::vector<std::string>& hosts, std::chrono::days valid);

}  // namespace deltawire::security
