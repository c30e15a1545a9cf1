#include "proto/dial.h"

#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/client_interceptor.h>

#include <string_view>
#include <utility>
#include <vector>

#include "proto/access.h"
#include "proto/convert.h"
#include "proto/grpc_lifetime.h"

namespace deltawire {
namespace {

namespace exp = grpc::experimental;

// Adds the token to a call. gRPC's own way does not work for plaintext channels.
class TokenShower final : public exp::Interceptor {
 public:
  explicit TokenShower(std::string value) : value_(std::move(value)) {}
  void Intercept(exp::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            exp::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", value_);
    }
    methods->Proceed();
  }

 private:
  const std::string value_;
};

class TokenShowers final : public exp::ClientInterceptorFactoryInterface {
 public:
  explicit TokenShowers(const std::string& token) : value_("Bearer " + token) {}
  exp::Interceptor* CreateClientInterceptor(exp::ClientRpcInfo*) override {
    return new TokenShower(value_);  // gRPC owns it
  }

 private:
  const std::string value_;
};

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(
    const security::CredentialMaterial& m) {
  if (m.authorities.empty()) return grpc::InsecureChannelCredentials();
  std::vector<exp::IdentityKeyCertPair> pairs;
  if (!m.certificate.empty()) pairs.push_back({m.key, m.certificate});
  exp::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(
      std::make_shared<exp::StaticDataCertificateProvider>(m.authorities, pairs));
  options.watch_root_certs();
  if (!pairs.empty()) options.watch_identity_key_cert_pairs();
  return exp::TlsCredentials(options);
}

bool StaysHere(std::string_view address) {
  return address.starts_with("unix:") || IsLoopbackAddress(address);
}

}  // namespace

void SetControlArguments(grpc::ChannelArguments& arguments) {
  arguments.SetMaxReceiveMessageSize(kMaxControlMessage);
  arguments.SetMaxSendMessageSize(kMaxControlMessage);
  // A web proxy does not reach this cluster's daemons.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Callers decide themselves when to retry. If an answer has no grpc-status, as after a flipped
  // bit, gRPC's own retries crash the process (1.51, retry_filter.cc, GetCallStatus).
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
}

StatusOr<std::shared_ptr<grpc::Channel>> DialControl(const std::string& address,
                                                     security::Credentials& credentials,
                                                     grpc::ChannelArguments arguments) {
  KeepGrpc();
  const auto material = credentials.Now();
  if (!material->token.empty() && material->authorities.empty() && !StaysHere(address)) {
    return Errorf(StatusCode::kInvalidArgument,
                  "{}: the token of {} would travel to {} in plaintext; give the file a `ca`",
                  credentials.file(), credentials.paths().token_file, address);
  }
  SetControlArguments(arguments);
  if (!material->server_name.empty()) arguments.SetSslTargetNameOverride(material->server_name);
  std::vector<std::unique_ptr<exp::ClientInterceptorFactoryInterface>> interceptors;
  if (!material->token.empty()) {
    interceptors.push_back(std::make_unique<TokenShowers>(material->token));
  }
  return exp::CreateCustomChannelWithInterceptors(address, ChannelCredentialsOf(*material),
                                                  arguments, std::move(interceptors));
}

}  // namespace deltawire
