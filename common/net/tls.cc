#include "common/net/tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <fstream>
#include <utility>

#include "common/base/log.h"

namespace deltawire::net {
namespace {

using security::CredentialMaterial;

constexpr size_t kReadAhead = size_t{256} << 10;

/// Counts of this process's streams: all, and those that the kernel encrypts.
struct KernelStreams {
  std::atomic<uint64_t> streams{0}, sending{0}, receiving{0};
};
KernelStreams& StreamsByKernel() {
  static KernelStreams all;
  return all;
}

std::string NextError() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "" : reason;
}

Status AddAuthorities(SSL_CTX* context, const std::string& pem) {
  BIO* in = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  X509_STORE* store = SSL_CTX_get_cert_store(context);
  size_t added = 0;
  while (X509* one = PEM_read_bio_X509(in, nullptr, nullptr, nullptr)) {
    X509_STORE_add_cert(store, one);
    SSL_CTX_add_client_CA(context, one);
    X509_free(one);
    ++added;
  }
  ERR_clear_error();
  BIO_free(in);
  if (added == 0) return absl::InvalidArgumentError("the authorities hold no certificate in PEM");
  return {};
}

Status UseCertificate(SSL_CTX* context, const CredentialMaterial& m) {
  BIO* in = BIO_new_mem_buf(m.certificate.data(), static_cast<int>(m.certificate.size()));
  bool first = true, used = true;
  while (X509* one = PEM_read_bio_X509(in, nullptr, nullptr, nullptr)) {
    used = (first ? SSL_CTX_use_certificate(context, one)
                  : SSL_CTX_add1_chain_cert(context, one)) == 1 &&
           used;
    first = false;
    X509_free(one);
  }
  ERR_clear_error();
  BIO_free(in);
  in = BIO_new_mem_buf(m.key.data(), static_cast<int>(m.key.size()));
  EVP_PKEY* key = PEM_read_bio_PrivateKey(in, nullptr, nullptr, nullptr);
  used = !first && used && key != nullptr && SSL_CTX_use_PrivateKey(context, key) == 1;
  EVP_PKEY_free(key);
  BIO_free(in);
  if (used) return {};
  return Errorf(StatusCode::kInvalidArgument, "the certificate and its key: {}", NextError());
}

std::string TextOf(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<size_t>(ASN1_STRING_length(text))};
}

std::string AddressOf(const ASN1_OCTET_STRING* bytes) {
  char text[INET6_ADDRSTRLEN] = "";
  const int family = ASN1_STRING_length(bytes) == 4 ? AF_INET : AF_INET6;
  if (family == AF_INET6 && ASN1_STRING_length(bytes) != 16) return "";
  inet_ntop(family, ASN1_STRING_get0_data(bytes), text, sizeof text);
  return text;
}

}  // namespace

StatusOr<std::shared_ptr<Tls>> Tls::Create(std::shared_ptr<security::Credentials> credentials,
                                           Side side, bool require_certificate) {
  std::shared_ptr<Tls> tls(new Tls(std::move(credentials), side, require_certificate));
  const auto first = tls->Now();  // an error shows now, not at the first stream
  if (!first.ok()) return first.status();
  return tls;
}

StatusOr<std::shared_ptr<const TlsContext>> Tls::Now() {
  const auto material = credentials_->Now();
  std::lock_guard lock(mu_);
  if (material != made_of_) {
    auto made = Make(*material);
    made_of_ = material;
    if (made.ok()) {
      context_ = std::move(*made);
    } else if (context_ == nullptr) {
      return Annotate(made.status(), credentials_->file());
    } else {
      LogWarn("{}: {}; bulk streams keep the old certificate", credentials_->file(),
              MessageOf(made.status()));
    }
  }
  return context_;
}

StatusOr<std::shared_ptr<const TlsContext>> Tls::Make(const CredentialMaterial& m) const {
  const bool server = side_ == Side::kServer;
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(server ? TLS_server_method() : TLS_client_method()),
                                   SSL_CTX_free);
  if (context == nullptr) return Errorf(StatusCode::kInternal, "TLS: {}", NextError());
  SSL_CTX* const c = context.get();
  SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION);
  // AES-128 comes first: it is a third cheaper than AES-256, and not the weakest link of the chain.
  SSL_CTX_set_ciphersuites(
      c, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
  // A stream lives for one pull, so resumed sessions gain nothing.
  SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(c, 0);
  SSL_CTX_set_options(c, SSL_OP_ENABLE_KTLS | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // One system call fetches several records of 16 KiB.
  SSL_CTX_set_read_ahead(c, 1);
  SSL_CTX_set_default_read_buffer_len(c, kReadAhead);
  if (!m.authorities.empty()) DW_RETURN_IF_ERROR(AddAuthorities(c, m.authorities));
  if (!m.certificate.empty()) DW_RETURN_IF_ERROR(UseCertificate(c, m));
  int verify = SSL_VERIFY_PEER;
  if (server && m.authorities.empty()) verify = SSL_VERIFY_NONE;
  if (server && require_certificate_) verify |= SSL_VERIFY_FAIL_IF_NO_PEER_CERT;
  SSL_CTX_set_verify(c, verify, nullptr);
  return std::make_shared<const TlsContext>(TlsContext{std::move(context), m.server_name});
}

std::vector<std::string> PeerNames(const SSL* ssl) {
  std::vector<std::string> names;
  X509* const peer = SSL_get0_peer_certificate(ssl);
  if (peer == nullptr || SSL_get_verify_result(ssl) != X509_V_OK) return names;
  const X509_NAME* subject = X509_get_subject_name(peer);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at >= 0) names.push_back(TextOf(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at))));
  auto* all =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(peer, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(all); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(all, i);
    if (name->type == GEN_DNS) names.push_back(TextOf(name->d.dNSName));
    if (name->type == GEN_URI) names.push_back(TextOf(name->d.uniformResourceIdentifier));
    if (name->type == GEN_IPADD) names.push_back(AddressOf(name->d.iPAddress));
  }
  GENERAL_NAMES_free(all);
  return names;
}

void NoteKernelTls(const SSL* ssl) {
  KernelStreams& all = StreamsByKernel();
  ++all.streams;
  if (BIO_get_ktls_send(SSL_get_wbio(ssl))) ++all.sending;
  if (BIO_get_ktls_recv(SSL_get_rbio(ssl))) ++all.receiving;
}

std::string KernelTls() {
  const KernelStreams& all = StreamsByKernel();
  if (all.sending > 0 && all.receiving > 0) return "yes, both ways";
  if (all.sending > 0) return "yes, what is sent";
  if (all.receiving > 0) return "yes, what is received";
#ifdef OPENSSL_NO_KTLS
  return "no, OpenSSL was built without it";
#else
  std::ifstream protocols("/proc/sys/net/ipv4/tcp_available_ulp");
  for (std::string one; protocols >> one;) {
    if (one != "tls") continue;
    return all.streams == 0 ? "no stream yet" : "no, OpenSSL does not use it for these streams";
  }
  return "no, the kernel has none (its module tls)";
#endif
}

std::string TlsErrors(const SSL* ssl) {
  const long verified = ssl == nullptr ? X509_V_OK : SSL_get_verify_result(ssl);
  std::string reason = NextError();
  if (verified != X509_V_OK) return X509_verify_cert_error_string(verified);
  return reason;
}

}  // namespace deltawire::net
