#include "common/security/certificate_issuer.h"

#include <arpa/inet.h>
#include <openssl/rand.h>

#include <algorithm>
#include <utility>

#include "common/security/openssl_owners.h"

namespace deltawire::security {
namespace {

// Clocks of machines differ, so a certificate is valid from a little before now.
constexpr long kBackdatedSeconds = 3600;
constexpr size_t kMostNameBytes = 64;  // of a common name, RFC 5280

Status Failed(std::string_view doing) {
  return Errorf(StatusCode::kInternal, "{}: {}", doing, OpensslError());
}

std::string PemOf(EVP_PKEY* key) {
  const OwnedBio out(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(out.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return {text, static_cast<size_t>(size)};
}

Status CheckName(const std::string& name) {
  const auto allowed = [](char c) { return c > ' ' && c <= '~' && c != ',' && c != '='; };
  if (!name.empty() && name.size() <= kMostNameBytes &&
      std::all_of(name.begin(), name.end(), allowed)) {
    return {};
  }
  return Errorf(StatusCode::kInvalidArgument,
                "\"{}\" is not 1 to {} visible ASCII characters without commas and '='", name,
                kMostNameBytes);
}

Status AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  if (extension == nullptr) {
    return Errorf(StatusCode::kInvalidArgument, "certificate: \"{}\": {}", value, OpensslError());
  }
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
  return {};
}

bool IsAddress(const std::string& host) {
  unsigned char parsed[16];
  return inet_pton(AF_INET, host.c_str(), parsed) == 1 ||
         inet_pton(AF_INET6, host.c_str(), parsed) == 1;
}

StatusOr<std::string> AlternativeNames(const std::vector<std::string>& hosts) {
  std::string names;
  for (const std::string& host : hosts) {
    DW_RETURN_IF_ERROR(CheckName(host));
    names += fmt::format("{}{}:{}", names.empty() ? "" : ",", IsAddress(host) ? "IP" : "DNS", host);
  }
  return names;
}

// Makes an unsigned version 3 certificate of `key` for `name` with a random serial number.
StatusOr<OwnedCertificate> Blank(EVP_PKEY* key, const std::string& name, std::chrono::days valid) {
  DW_RETURN_IF_ERROR(CheckName(name));
  OwnedCertificate certificate(X509_new());
  unsigned char serial[16];
  if (RAND_bytes(serial, sizeof serial) != 1) return Failed("a random serial number");
  serial[0] &= 0x7f;  // a serial number is positive
  BIGNUM* number = BN_bin2bn(serial, sizeof serial, nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate.get()));
  BN_free(number);
  X509_set_version(certificate.get(), 2);  // counted from 0
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kBackdatedSeconds);
  X509_time_adj_ex(X509_getm_notAfter(certificate.get()), static_cast<int>(valid.count()), 0,
                   nullptr);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

}  // namespace

StatusOr<IssuedCertificate> MakeAuthority(const std::string& name, std::chrono::days valid) {
  const OwnedKey key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("a key");
  DW_ASSIGN_OR_RETURN(const OwnedCertificate made, Blank(key.get(), name, valid));
  X509* const self = made.get();
  X509_set_issuer_name(self, X509_get_subject_name(self));
  DW_RETURN_IF_ERROR(AddExtension(self, self, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  DW_RETURN_IF_ERROR(AddExtension(self, self, NID_key_usage, "critical,keyCertSign,cRLSign"));
  DW_RETURN_IF_ERROR(AddExtension(self, self, NID_subject_key_identifier, "hash"));
  if (X509_sign(self, key.get(), EVP_sha256()) == 0) return Failed("signing");
  return IssuedCertificate{PemOf(self), PemOf(key.get())};
}

StatusOr<IssuedCertificate> Issue(const IssuedCertificate& authority, const std::string& name,
                                  const std::vector<std::string>& hosts, std::chrono::days valid) {
  const OwnedBio certificate_in = ReadFrom(authority.certificate), key_in = ReadFrom(authority.key);
  const OwnedCertificate ca(PEM_read_bio_X509(certificate_in.get(), nullptr, nullptr, nullptr));
  const OwnedKey ca_key(PEM_read_bio_PrivateKey(key_in.get(), nullptr, nullptr, nullptr));
  if (ca == nullptr || ca_key == nullptr) return Failed("reading the authority");
  const OwnedKey key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("a key");
  DW_ASSIGN_OR_RETURN(const OwnedCertificate made, Blank(key.get(), name, valid));
  X509* const self = made.get();
  X509_set_issuer_name(self, X509_get_subject_name(ca.get()));
  DW_ASSIGN_OR_RETURN(const std::string names, AlternativeNames(hosts));
  DW_RETURN_IF_ERROR(AddExtension(self, ca.get(), NID_basic_constraints, "critical,CA:FALSE"));
  DW_RETURN_IF_ERROR(AddExtension(self, ca.get(), NID_key_usage, "critical,digitalSignature"));
  DW_RETURN_IF_ERROR(AddExtension(self, ca.get(), NID_ext_key_usage, "serverAuth,clientAuth"));
  DW_RETURN_IF_ERROR(AddExtension(self, ca.get(), NID_subject_key_identifier, "hash"));
  DW_RETURN_IF_ERROR(AddExtension(self, ca.get(), NID_authority_key_identifier, "keyid:always"));
  if (!names.empty()) {
    DW_RETURN_IF_ERROR(AddExtension(self, ca.get(), NID_subject_alt_name, names));
  }
  if (X509_sign(self, ca_key.get(), EVP_sha256()) == 0) return Failed("signing");
  return IssuedCertificate{PemOf(self), PemOf(key.get())};
}

}  // namespace deltawire::security
