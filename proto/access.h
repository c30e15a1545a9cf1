// The gate in front of all gRPC services of a TCP port. It identifies the caller by certificate or
// token, checks the caller's roles against those that the method allows (access.proto), and counts
// long calls. Server and services share it, on gRPC's threads. No message or log line contains a
// secret.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>

#include "common/base/log_throttle.h"
#include "common/base/status.h"
#include "common/security/credentials.h"
#include "common/security/principals.h"
#include "proto/open_calls.h"

namespace deltawire {

/// Calls that may stay open for long.
enum class LongCall : uint8_t {
  kWatch,  ///< notifies of changes; holds memory, but no thread
  kWait,   ///< directs peers and waits for them; holds memory, but no thread
  kWork,   ///< holds a thread
};
struct CallLimits {
  OpenCalls::Limits watches{.most = 4096, .most_per_caller = 512};
  OpenCalls::Limits waits{.most = 4096, .most_per_caller = 512};
  OpenCalls::Limits work{.most = 128, .most_per_caller = 32};
  /// The memory of the requests of all these calls.
  OpenCalls::Limits bytes{.most = size_t{256} << 20, .most_per_caller = size_t{64} << 20};
};

/// Returns whether `address` is exactly "127.x.y.z:port", "localhost:port" or "[::1]:port".
bool IsLoopbackAddress(std::string_view address);

class Access {
 public:
  /// Reads both files; an empty name means no file. `principals` need TLS or loopback.
  static StatusOr<std::shared_ptr<Access>> Load(const std::string& credentials,
                                                const std::string& principals);
  /// Plaintext, and every caller may do everything.
  static std::shared_ptr<Access> Open(const CallLimits& limits = {});

  /// Returns the credentials for a server that listens on loopback or beyond it.
  StatusOr<std::shared_ptr<grpc::ServerCredentials>> ForServer(bool loopback) const;

  /// Returns text such as "TLS 1.3, 5 principals", for status displays.
  std::string Describe() const;
  const std::shared_ptr<security::Credentials>& credentials() const { return credentials_; }
  bool has_principals() const { return principals_ != nullptr; }
  /// Returns whether TLS or principals protect the services.
  bool guards() const { return credentials_->serves_tls() || has_principals(); }
  /// Returns the number of calls that the gate refused or that named another principal's model.
  uint64_t calls_refused() const { return *calls_refused_; }
  /// Returns the number of calls beyond the limits of Hold.
  uint64_t calls_beyond_limits() const { return calls_beyond_limits_; }
  /// The setting in the principals' file at the start.
  bool requires_certificate() const { return requires_certificate_; }

  /// Returns the caller's principal, or null if there are no principals. A principal that has been
  /// removed from the file since is UNAUTHENTICATED.
  StatusOr<std::shared_ptr<const security::Principal>> CallerOf(
      const grpc::ServerContextBase& context) const;
  /// Returns OK if this call may name the model. PERMISSION_DENIED names the refused principal.
  Status MayTouch(const grpc::ServerContextBase& context, const std::string& model) const;
  /// Returns the principal's current entry in the file, or null if there are no principals.
  /// PERMISSION_DENIED names the principal that may no longer fetch the model's weights.
  StatusOr<std::shared_ptr<const security::Principal>> MayStillFetch(
      const std::string& principal, const std::string& model) const;
  /// Returns MayTouch's answer as a bool, for lists.
  bool MaySee(const grpc::ServerContextBase& context, const std::string& model) const;

  /// Counts this call for its caller, and its request's memory, until the result is destroyed.
  /// Fails with kResourceExhausted beyond the limits of one principal (or, without principals, one
  /// address) or of all callers.
  StatusOr<std::shared_ptr<const void>> Hold(const grpc::ServerContextBase& context, LongCall kind,
                                             const google::protobuf::Message& request) const;

  /// Refuses to serve other machines in plaintext or without principals, unless
  /// `insecure_plaintext` allows it. Then it logs a warning.
  Status CheckExposure(bool beyond_loopback, bool insecure_plaintext) const;

  /// Reads the files again, whether they changed or not, and logs it. After an error the old
  /// contents stay in use.
  void Reload();

 private:
  explicit Access(const CallLimits& limits)
      : watches_("watches", limits.watches),
        waits_("waiting calls", limits.waits),
        work_("calls", limits.work),
        bytes_("requests of calls that last", limits.bytes) {}
  OpenCalls& Count(LongCall kind) const;

  std::shared_ptr<security::Credentials> credentials_;
  std::shared_ptr<security::Principals> principals_;
  bool requires_certificate_ = false;
  mutable OpenCalls watches_, waits_, work_, bytes_;
  mutable std::atomic<uint64_t> calls_beyond_limits_{0};
  mutable LogThrottle held_;
  // Shared with the gates, which live as long as their server.
  const std::shared_ptr<std::atomic<uint64_t>> calls_refused_ =
      std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace deltawire
