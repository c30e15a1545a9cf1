// The principals that a daemon knows, from a TOML file (docs/security.md): each one's roles,
// models, and proof of identity (a certificate's name or a token). Thread-safe. A look-up is linear
// in the principals. Errors are kUnauthenticated and kPermissionDenied, and name no secret.
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

/// A set of roles is their sum, a Roles. Any role includes the observer's.
enum class Role : uint8_t { kObserver = 1, kReceiver = 2, kTrainer = 4, kOperator = 8 };
using Roles = uint8_t;
inline constexpr Roles kAllRoles = 15;
inline Roles operator|(Role a, Role b) {
  return static_cast<Roles>(static_cast<Roles>(a) | static_cast<Roles>(b));
}
std::string_view ToString(Role role);
/// Returns "operator or receiver".
std::string ToString(Roles roles);

struct Principal {
  std::string name;
  Roles roles = 0;
  std::vector<std::string> models;        ///< empty: all
  std::vector<std::string> certificates;  ///< common names or alternative names; any one is enough
  std::string token;                      ///< empty: none

  /// Returns true when it has one of `wanted`; any role includes the observer's.
  bool Has(Roles wanted) const;
  bool MayTouch(std::string_view model) const;
};

class PrincipalTable {
 public:
  explicit PrincipalTable(std::vector<Principal> principals, Roles anonymous_roles,
                          bool require_certificate);

  // Find the principal by the names in its verified certificate, by a token, or by its own name.
  // Null: no principal matches, or the certificate has names of two principals.
  const Principal* ByCertificate(const std::vector<std::string>& names) const;
  const Principal* ByToken(std::string_view token) const;
  const Principal* ByName(std::string_view name) const;
  /// Returns the principal of a peer that dials over loopback without TLS or a token.
  const Principal& anonymous() const { return anonymous_; }
  /// Returns whether the TLS handshake fails without a client's certificate.
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
