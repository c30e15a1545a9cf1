#include "common/security/tls_probe.h"

#include <openssl/ssl.h>

#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "common/base/sigpipe_blocked.h"
#include "common/security/openssl_owners.h"

namespace deltawire::security {
namespace {

using OwnedContext = std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>>;
using OwnedSsl = std::unique_ptr<SSL, Freed<SSL_free>>;
using OwnedNames = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>>;

std::string OneLine(const X509_NAME* name) {
  std::array<char, 256> text{};
  X509_NAME_oneline(name, text.data(), text.size());
  return text.data();
}

std::vector<std::string> NamesOf(X509* certificate) {
  std::vector<std::string> names;
  const OwnedNames all(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(all.get()); ++i) {
    const GENERAL_NAME* const one = sk_GENERAL_NAME_value(all.get(), i);
    if (one->type != GEN_DNS && one->type != GEN_IPADD) continue;
    const ASN1_STRING* const text = one->type == GEN_DNS ? one->d.dNSName : one->d.iPAddress;
    const uint8_t* const bytes = ASN1_STRING_get0_data(text);
    const int size = ASN1_STRING_length(text);
    if (one->type == GEN_DNS) {
      names.emplace_back(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
    } else if (size == 4) {
      names.push_back(fmt::format("{}.{}.{}.{}", bytes[0], bytes[1], bytes[2], bytes[3]));
    }
  }
  return names;
}

struct Disbelief {
  std::string why, remedy;
};

Disbelief Explain(long code, const std::string& host) {
  switch (code) {
    case X509_V_OK:
      return {};
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return {"it has ended, by this machine's clock",
              "renew it: deltawire certs DIR NAME... with the authority's directory; or set this "
              "machine's clock"};
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return {"it has not begun yet, by this machine's clock",
              "set the clock of this machine, or of the one that made it"};
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return {fmt::format("it is not for {}", host),
              "dial it by one of its names, set `server-name`, or make it one with this name: "
              "deltawire certs DIR NAME=HOST"};
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
      return {"it is of another authority than those in `ca`",
              "give both ends certificates and `ca` of one directory of deltawire certs"};
    default:
      return {X509_verify_cert_error_string(code), "docs/security.md says what a peer must show"};
  }
}

/// Makes a context that trusts `own`'s authorities and presents its certificate.
StatusOr<OwnedContext> MakeContext(const CredentialMaterial& own) {
  OwnedContext context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return absl::InternalError("TLS: " + OpensslError());
  X509_STORE* const store = SSL_CTX_get_cert_store(context.get());
  const OwnedBio authorities = ReadFrom(own.authorities);
  while (
      const OwnedCertificate one{PEM_read_bio_X509(authorities.get(), nullptr, nullptr, nullptr)}) {
    X509_STORE_add_cert(store, one.get());
  }
  if (!own.certificate.empty()) {
    const OwnedBio chain = ReadFrom(own.certificate), secret = ReadFrom(own.key);
    const OwnedCertificate leaf(PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr));
    const OwnedKey key(PEM_read_bio_PrivateKey(secret.get(), nullptr, nullptr, nullptr));
    SSL_CTX_use_certificate(context.get(), leaf.get());
    SSL_CTX_use_PrivateKey(context.get(), key.get());
    while (const OwnedCertificate one{PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr)}) {
      SSL_CTX_add1_chain_cert(context.get(), one.get());
    }
  }
  // The handshake continues with an untrusted certificate, so that it can be described.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof kHttp2);
  ERR_clear_error();
  return context;
}

// With TLS 1.3 a server checks its client's certificate after the client has finished the
// handshake, so its rejection comes with the first read. One that accepts sends HTTP/2's settings.
std::string RefusalOf(SSL* ssl) {
  char byte;
  if (SSL_read(ssl, &byte, 1) > 0) return "";
  const unsigned long code = ERR_peek_error();
  if (code == 0 || ERR_GET_LIB(code) != ERR_LIB_SSL) return "";
  return OpensslError();
}

}  // namespace

StatusOr<PeerTls> ProbeTls(int fd, const std::string& host, const CredentialMaterial& own) {
  const SigpipeBlocked no_sigpipe;
  DW_ASSIGN_OR_RETURN(const OwnedContext context, MakeContext(own));
  const OwnedSsl ssl(SSL_new(context.get()));
  if (ssl == nullptr || SSL_set_fd(ssl.get(), fd) != 1) {
    return absl::InternalError("TLS: " + OpensslError());
  }
  const std::string& name = own.server_name.empty() ? host : own.server_name;
  X509_VERIFY_PARAM* const check = SSL_get0_param(ssl.get());
  if (X509_VERIFY_PARAM_set1_ip_asc(check, name.c_str()) != 1) {
    X509_VERIFY_PARAM_set1_host(check, name.c_str(), 0);
    SSL_set_tlsext_host_name(ssl.get(), name.c_str());
  }
  ERR_clear_error();
  if (SSL_connect(ssl.get()) != 1) {
    const unsigned long code = ERR_peek_error();
    const bool no_tls = code != 0 && ERR_GET_REASON(code) == SSL_R_WRONG_VERSION_NUMBER;
    return Errorf(no_tls || code == 0 ? StatusCode::kFailedPrecondition : StatusCode::kUnavailable,
                  "the port is open, and no TLS is spoken there ({})", OpensslError());
  }
  const OwnedCertificate leaf(SSL_get1_peer_certificate(ssl.get()));
  if (leaf == nullptr) return absl::UnavailableError("the peer presents no certificate");
  PeerTls peer;
  DW_ASSIGN_OR_RETURN(const std::vector<CertificateDates> dates, DatesOf(PemOf(leaf.get())));
  peer.certificate = dates.front();
  peer.issuer = OneLine(X509_get_issuer_name(leaf.get()));
  peer.names = NamesOf(leaf.get());
  if (!own.authorities.empty()) {
    Disbelief said = Explain(SSL_get_verify_result(ssl.get()), name);
    peer.disbelieved = std::move(said.why);
    peer.remedy = std::move(said.remedy);
  }
  const unsigned char* protocol = nullptr;
  unsigned int protocol_bytes = 0;
  SSL_get0_alpn_selected(ssl.get(), &protocol, &protocol_bytes);
  peer.http2 = std::string_view(reinterpret_cast<const char*>(protocol), protocol_bytes) == "h2";
  peer.refused = RefusalOf(ssl.get());
  return peer;
}

}  // namespace deltawire::security
