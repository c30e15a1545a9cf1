#include "receiver/engine/engine_access.h"

#include <utility>
#include <vector>

#include "common/security/openssl_owners.h"
#include "common/security/secret_file.h"

namespace deltawire::receiver {
namespace {

using security::OpensslError;
using Reading = security::Reread<EngineSecrets>::Reading;

/// Trusts the certificates in `file` alone.
Status Trust(SSL_CTX* context, const std::string& file) {
  DW_ASSIGN_OR_RETURN(const std::string pem, security::ReadTextFile(file));
  const security::OwnedBio in = security::ReadFrom(pem);
  size_t added = 0;
  while (X509* one = PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr)) {
    const security::OwnedCertificate owned(one);
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), one) == 1) ++added;
  }
  ERR_clear_error();  // the end of the text is an error too
  if (added == 0) {
    return Errorf(StatusCode::kInvalidArgument, "{} holds no certificate in PEM", file);
  }
  return {};
}

StatusOr<std::shared_ptr<SSL_CTX>> MakeContext(const std::string& ca_file) {
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  if (context == nullptr) return Errorf(StatusCode::kInternal, "TLS: {}", OpensslError());
  // Some engines' servers and gateways have no TLS 1.3.
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  if (!ca_file.empty()) {
    DW_RETURN_IF_ERROR(Trust(context.get(), ca_file));
  } else if (SSL_CTX_set_default_verify_paths(context.get()) != 1) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "the system's certificate authorities cannot be used: {}; name a file with "
                  "ca_file=",
                  OpensslError());
  }
  return context;
}

StatusOr<Reading> Read(const std::string& token_file, const std::string& ca_file, bool tls) {
  auto secrets = std::make_shared<EngineSecrets>();
  Reading reading;
  if (!token_file.empty()) {
    DW_ASSIGN_OR_RETURN(secrets->token, security::ReadKeyFile(token_file));
    reading.files.push_back(token_file);
  }
  if (tls) {
    DW_ASSIGN_OR_RETURN(secrets->tls, MakeContext(ca_file));
    if (!ca_file.empty()) reading.files.push_back(ca_file);
  }
  reading.value = std::move(secrets);
  return reading;
}

}  // namespace

StatusOr<std::shared_ptr<EngineAccess>> EngineAccess::Load(const EngineOptions& options) {
  std::shared_ptr<EngineAccess> access(new EngineAccess());
  auto reread =
      security::Reread<EngineSecrets>::Create([token = options.token_file, ca = options.ca_file,
                                               tls = options.tls] { return Read(token, ca, tls); });
  if (!reread.ok()) return Annotate(reread.status(), "engine " + NameOf(options));
  access->reread_ = std::move(*reread);
  return access;
}

}  // namespace deltawire::receiver
