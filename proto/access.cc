#include "proto/access.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/log_throttle.h"
#include "proto/convert.h"
#include "proto/deltawire/v1/access.pb.h"

namespace deltawire {
namespace {

using security::Principal;
using security::PrincipalTable;
using security::Roles;

constexpr std::string_view kBearer = "Bearer ";
// Probes have no token and touch no model.
constexpr std::string_view kHealth = "/grpc.health.v1.Health/";
constexpr unsigned kCertificateRefreshSeconds = 1;

std::string_view TextOf(const grpc::string_ref& text) { return {text.data(), text.size()}; }

// Returns the roles that may call "/package.Service/Method". A method that names no role is closed
// to all. gRPC's reflection is open to all principals, because it only shows the .proto files.
Roles AllowedFor(std::string_view path) {
  if (path.starts_with("/grpc.reflection.")) return security::kAllRoles;
  std::string name(path.substr(std::min<size_t>(1, path.size())));
  std::replace(name.begin(), name.end(), '/', '.');
  const auto* method = google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name);
  Roles roles = 0;
  if (method == nullptr) return roles;
  for (int i = 0; i < method->options().ExtensionSize(v1::allow); ++i) {
    roles = static_cast<Roles>(roles | method->options().GetExtension(v1::allow, i));
  }
  return roles;
}

// Returns the caller, by the call's token or the connection's certificate.
template <typename Metadata>
StatusOr<const Principal*> Find(const PrincipalTable& table, const Metadata& metadata,
                                const grpc::AuthContext& connection) {
  // A token is more specific than a certificate, which a whole machine may share.
  if (const auto shown = metadata.find("authorization"); shown != metadata.end()) {
    const std::string_view value = TextOf(shown->second);
    if (value.starts_with(kBearer)) {
      if (const Principal* who = table.ByToken(value.substr(kBearer.size()))) return who;
    }
    return absl::UnauthenticatedError("the token is of no principal here");
  }
  std::vector<std::string> names;
  for (const char* property : {GRPC_X509_CN_PROPERTY_NAME, GRPC_X509_SAN_PROPERTY_NAME}) {
    for (const grpc::string_ref& value : connection.FindPropertyValues(property)) {
      names.emplace_back(TextOf(value));
    }
  }
  if (const Principal* who = table.ByCertificate(names)) return who;
  const auto transport = connection.FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  if (transport.size() == 1 && TextOf(transport[0]) == "local") return &table.anonymous();
  if (names.empty()) {
    return absl::UnauthenticatedError(
        "neither a certificate nor a token was shown: --credentials FILE names both");
  }
  return Errorf(StatusCode::kUnauthenticated, "the certificate of {} is of no principal here",
                names.front());
}

// The gate does not store its result in the AuthContext for the handlers. That belongs to the
// connection, whose calls may come from several principals.
class Gate final : public grpc::AuthMetadataProcessor {
 public:
  Gate(std::shared_ptr<security::Principals> principals,
       std::shared_ptr<std::atomic<uint64_t>> refused)
      : principals_(std::move(principals)), refused_(std::move(refused)) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* connection,
                       OutputMetadata*, OutputMetadata*) override {
    const auto path = metadata.find(":path");
    const std::string method(path == metadata.end() ? "" : TextOf(path->second));
    if (method.starts_with(kHealth)) return grpc::Status::OK;
    const Status status = Admit(method, metadata, *connection);
    *refused_ += status.ok() ? 0 : 1;
    if (!status.ok() && throttle_.Allow(std::string(MessageOf(status)))) {
      LogWarn("a call of {} was refused: {}", method, MessageOf(status));
    }
    return ToGrpc(status);
  }

 private:
  Status Admit(const std::string& method, const InputMetadata& metadata,
               const grpc::AuthContext& connection) const {
    const auto table = principals_->Now();
    DW_ASSIGN_OR_RETURN(const Principal* who, Find(*table, metadata, connection));
    const Roles allowed = AllowedFor(method);
    if (who->Has(allowed)) return {};
    if (allowed == 0) return absl::PermissionDeniedError("no role may call that method");
    return Errorf(StatusCode::kPermissionDenied,
                  "{} may not call {}: that takes the role {}, and {} has {}", who->name, method,
                  security::ToString(allowed), who->name, security::ToString(who->roles));
  }

  const std::shared_ptr<security::Principals> principals_;
  const std::shared_ptr<std::atomic<uint64_t>> refused_;
  LogThrottle throttle_;
};

std::shared_ptr<grpc::ServerCredentials> TlsOf(const security::CredentialPaths& at,
                                               bool require_certificate) {
  using grpc::experimental::FileWatcherCertificateProvider;
  const auto files = at.ca.empty() ? std::make_shared<FileWatcherCertificateProvider>(
                                         at.key, at.certificate, kCertificateRefreshSeconds)
                                   : std::make_shared<FileWatcherCertificateProvider>(
                                         at.key, at.certificate, at.ca, kCertificateRefreshSeconds);
  grpc::experimental::TlsServerCredentialsOptions options(files);
  options.watch_identity_key_cert_pairs();
  if (!at.ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(require_certificate
                                      ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                      : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

}  // namespace

bool IsLoopbackAddress(std::string_view address) {
  const std::string_view host = address.substr(0, address.rfind(':'));
  if (host == "localhost" || host == "[::1]") return true;
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == host.npos;
}

std::shared_ptr<Access> Access::Open(const CallLimits& limits) {
  std::shared_ptr<Access> access(new Access(limits));
  access->credentials_ = security::Credentials::None();
  return access;
}

StatusOr<std::shared_ptr<Access>> Access::Load(const std::string& credentials,
                                               const std::string& principals) {
  std::shared_ptr<Access> access = Open();
  if (!credentials.empty()) {
    auto loaded = security::Credentials::Load(credentials);
    if (!loaded.ok()) return Annotate(loaded.status(), "--credentials");
    access->credentials_ = *std::move(loaded);
  }
  if (!principals.empty()) {
    auto loaded = security::Principals::Load(principals);
    if (!loaded.ok()) return Annotate(loaded.status(), "--principals");
    access->principals_ = *std::move(loaded);
  }
  access->requires_certificate_ =
      access->has_principals() && access->principals_->Now()->require_certificate();
  if (access->requires_certificate_ && access->credentials_->paths().ca.empty()) {
    return Errorf(StatusCode::kInvalidArgument,
                  "{}: require-certificate needs --credentials with the `ca` that certificates "
                  "come from",
                  principals);
  }
  return access;
}

std::string Access::Describe() const {
  const std::string way = credentials_->serves_tls() ? "TLS 1.3" : "plaintext";
  if (principals_ == nullptr) return way + ", anybody may do everything";
  const size_t known = principals_->Now()->size();
  return fmt::format("{}, {} principal{}{}", way, known, known == 1 ? "" : "s",
                     requires_certificate() ? ", certificates required" : "");
}

StatusOr<std::shared_ptr<grpc::ServerCredentials>> Access::ForServer(bool loopback) const {
  std::shared_ptr<grpc::ServerCredentials> server;
  if (credentials_->serves_tls()) {
    server = TlsOf(credentials_->paths(), requires_certificate());
  } else if (principals_ == nullptr) {
    return grpc::InsecureServerCredentials();
  } else if (loopback) {
    // Local credentials refuse peers of other machines and, unlike plaintext ones, can have a gate.
    server = grpc::experimental::LocalServerCredentials(LOCAL_TCP);
  } else {
    return absl::InvalidArgumentError(
        "--principals beyond loopback need --credentials with a certificate: tokens would travel "
        "in plaintext");
  }
  if (principals_ != nullptr) {
    server->SetAuthMetadataProcessor(std::make_shared<Gate>(principals_, calls_refused_));
  }
  return server;
}

StatusOr<std::shared_ptr<const Principal>> Access::CallerOf(
    const grpc::ServerContextBase& context) const {
  if (principals_ == nullptr) return std::shared_ptr<const Principal>();
  const auto table = principals_->Now();
  DW_ASSIGN_OR_RETURN(const Principal* who,
                      Find(*table, context.client_metadata(), *context.auth_context()));
  return std::shared_ptr<const Principal>(table, who);
}

Status Access::MayTouch(const grpc::ServerContextBase& context, const std::string& model) const {
  DW_ASSIGN_OR_RETURN(const auto who, CallerOf(context));
  if (who == nullptr || who->MayTouch(model)) return {};
  ++*calls_refused_;
  return Errorf(StatusCode::kPermissionDenied, "{} may not touch model \"{}\"", who->name, model);
}

StatusOr<std::shared_ptr<const security::Principal>> Access::MayStillFetch(
    const std::string& principal, const std::string& model) const {
  if (principals_ == nullptr) return std::shared_ptr<const Principal>();
  const auto table = principals_->Now();
  const Principal* who = table->ByName(principal);
  const bool may = who != nullptr && who->Has(static_cast<Roles>(security::Role::kReceiver)) &&
                   who->MayTouch(model);
  if (may) return std::shared_ptr<const Principal>(table, who);
  return Errorf(StatusCode::kPermissionDenied, "{} may not fetch model \"{}\" any more", principal,
                model);
}

bool Access::MaySee(const grpc::ServerContextBase& context, const std::string& model) const {
  const auto who = CallerOf(context);
  return who.ok() && (*who == nullptr || (*who)->MayTouch(model));
}

StatusOr<std::shared_ptr<const void>> Access::Hold(const grpc::ServerContextBase& context,
                                                   LongCall kind,
                                                   const google::protobuf::Message& request) const {
  DW_ASSIGN_OR_RETURN(const auto who, CallerOf(context));
  const std::string peer = context.peer();
  const std::string caller = who != nullptr ? who->name : peer.substr(0, peer.rfind(':'));
  using Held = std::shared_ptr<const void>;
  StatusOr<Held> call = Count(kind).Take(caller);
  StatusOr<Held> bytes =
      call.ok() ? bytes_.TakeBytes(caller, request.SpaceUsedLong()) : call.status();
  if (bytes.ok())
    return std::make_shared<std::pair<Held, Held>>(*std::move(call), *std::move(bytes));
  ++calls_beyond_limits_;
  if (held_.Allow(caller)) LogWarn("a call was refused: {}", MessageOf(bytes.status()));
  return bytes.status();
}

OpenCalls& Access::Count(LongCall kind) const {
  switch (kind) {
    case LongCall::kWatch:
      return watches_;
    case LongCall::kWait:
      return waits_;
    case LongCall::kWork:
      break;
  }
  return work_;
}

Status Access::CheckExposure(bool beyond_loopback, bool insecure_plaintext) const {
  if (!beyond_loopback || (credentials_->serves_tls() && has_principals())) return {};
  if (!insecure_plaintext) {
    return Errorf(StatusCode::kInvalidArgument,
                  "listening beyond loopback needs --credentials with a `certificate`, and "
                  "--principals (here: {})",
                  Describe());
  }
  LogWarn("listening beyond loopback: {} (--insecure-plaintext)", Describe());
  return {};
}

void Access::Reload() {
  Status status = credentials_->Reload();
  if (status.ok() && principals_ != nullptr) status = principals_->Reload();
  if (status.ok()) {
    LogInfo("credentials and principals were read again: {}", Describe());
  } else {
    LogError("{}; what was read before stays in use", MessageOf(status));
  }
}

}  // namespace deltawire
