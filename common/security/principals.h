// Who may do what: the principals that a daemon knows, each with roles, the models it may touch,
// and how it proves who it is (a certificate's name or a token). Read from a TOML file
// (docs/security.md). Owner: shared. Threads: every method from any. Cost: Reread's; a look-up is
// linear in the principals. Errors: kUnauthenticated, kPermissionDenied, which name no secret.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/security/reread.h"

namespace deltawire::security {

/// A set of roles is their sum, a Roles. Whoever has any role may also observe.
enum class Role : uint8_t { kObserver = 1, kReceiver = 2, kTrainer = 4, kOperator = 8 };
using Roles = uint8_t;
inline constexpr Roles kAllRoles = 15;
inline Roles operator|(Role a, Role b) {
  return static_cast<Roles>(static_cast<Roles>(a) | static_cast<Roles>(b));
}
std::string_view ToString(Role role);
/// "operator or receiver".
std::string ToString(Roles roles);

struct Principal {
  std::string name;
  Roles roles = 0;
  std::vector<std::string> models;        ///< empty: all
  std::vector<std::string> certificates;  ///< common names or alternative names; any one is enough
  std::string token;                      ///< empty: none

  /// True when it has one of `wanted`; any role includes the observer's.
  bool Has(Roles wanted) const;
  bool MayTouch(std::string_view model) const;
};

class PrincipalTable {
 public:
  explicit PrincipalTable(std::vector<Principal> principals, Roles anonymous_roles,
                          bool require_certificate);

  // The principal that shows this: the names in its verified certificate, a token, or its own name.
  // Null: the table knows nobody who would, or two principals have names of the certificate.
  const Principal* ByCertificate(const std::vector<std::string>& names) const;
  const Principal* ByToken(std::string_view token) const;
  const Principal* ByName(std::string_view name) const;
  /// The principal that a peer is which dials over loopback without TLS and shows nothing.
  const Principal& anonymous() const { return anonymous_; }
  /// Whether the TLS handshake ends without a client's certificate.
  bool require_certificate() const { return require_certificate_; }
  size_t size() const { return principals_.size(); }

 private:
  std::vector<Principal> principals_;
  Principal anonymous_;
  bool require_certificate_;
};

class Principals {
 public:
  static StatusOr<std::shared_ptr<Principals>> Load(const std::string& file);

  std::shared_ptr<const PrincipalTable> Now() { return reread_->Now(); }
  Status Reload() { return reread_->Reload(); }

 private:
  Principals() = default;
  std::unique_ptr<Reread<PrincipalTable>> reread_;
};

}  // namespace deltawire::security
