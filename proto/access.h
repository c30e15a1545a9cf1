// The one gate in front of all gRPC services of a TCP port: who calls (by certificate or token),
// and whether one of that principal's roles is among those that the method allows (access.proto);
// it also counts long calls. Owner: main; shared by server and services. Threads: gRPC's, any.
// Errors: UNAUTHENTICATED, PERMISSION_DENIED, RESOURCE_EXHAUSTED; no message or log line holds a
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

/// Calls that may be open for long.
enum class LongCall : uint8_t {
  kWatch,  ///< tells what is new; holds memory, and no thread
  kWait,   ///< has others do something, and waits for them; holds memory, and no thread
  kWork,   ///< holds a thread
};
struct CallLimits {
  OpenCalls::Limits watches{.most = 4096, .most_per_caller = 512};
  OpenCalls::Limits waits{.most = 4096, .most_per_caller = 512};
  OpenCalls::Limits work{.most = 128, .most_per_caller = 32};
  /// Bytes of memory that the requests of all these calls hold.
  OpenCalls::Limits bytes{.most = size_t{256} << 20, .most_per_caller = size_t{64} << 20};
};

/// True of "127.x.y.z:port", "localhost:port" and "[::1]:port", and of nothing that resembles them.
bool IsLoopbackAddress(std::string_view address);

class Access {
 public:
  /// Reads both files; an empty name means that there is no such file. `principals` need TLS or
  /// loopback.
  static StatusOr<std::shared_ptr<Access>> Load(const std::string& credentials,
                                                const std::string& principals);
  /// Plaintext, and everybody may do everything.
  static std::shared_ptr<Access> Open(const CallLimits& limits = {});

  /// What a server that listens at loopback or elsewhere speaks and asks for.
  StatusOr<std::shared_ptr<grpc::ServerCredentials>> ForServer(bool loopback) const;

  /// "TLS 1.3, 5 principals", for status displays.
  std::string Describe() const;
  const std::shared_ptr<security::Credentials>& credentials() const { return credentials_; }
  bool has_principals() const { return principals_ != nullptr; }
  /// Whether there is anything between a caller and the services.
  bool guards() const { return credentials_->serves_tls() || has_principals(); }
  /// Calls that the gate refused, and calls that named a model which is not theirs.
  uint64_t calls_refused() const { return *calls_refused_; }
  /// Calls beyond the limits of Hold.
  uint64_t calls_beyond_limits() const { return calls_beyond_limits_; }
  /// As the principals' file was at the start.
  bool requires_certificate() const { return requires_certificate_; }

  /// Who makes this call; null where there are no principals. A principal that was taken out of the
  /// file since is UNAUTHENTICATED.
  StatusOr<std::shared_ptr<const security::Principal>> CallerOf(
      const grpc::ServerContextBase& context) const;
  /// Whether this call may name the model. PERMISSION_DENIED says who may not.
  Status MayTouch(const grpc::ServerContextBase& context, const std::string& model) const;
  /// A principal that may have been changed in the file since, as it is now; null where there are
  /// none. PERMISSION_DENIED says who may not fetch the model's weights any more.
  StatusOr<std::shared_ptr<const security::Principal>> MayStillFetch(
      const std::string& principal, const std::string& model) const;
  /// The same as MayTouch as a yes or no, for lists.
  bool MaySee(const grpc::ServerContextBase& context, const std::string& model) const;

  /// Counts this call of its caller, and the memory of its request, until the result is dropped.
  /// kResourceExhausted beyond the limits of one principal (or, where there are none, one address)
  /// and of all.
  StatusOr<std::shared_ptr<const void>> Hold(const grpc::ServerContextBase& context, LongCall kind,
                                             const google::protobuf::Message& request) const;

  /// Refuses to be reached from other machines in plaintext or by anybody, unless
  /// `insecure_plaintext` allows that, which it then logs.
  Status CheckExposure(bool beyond_loopback, bool insecure_plaintext) const;

  /// Reads the files again, whether they changed or not, and logs it. After an error the old ones
  /// stay in use.
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
