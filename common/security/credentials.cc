#include "common/security/credentials.h"

#include <toml++/toml.h>

#include <ctime>
#include <utility>

#include "common/base/similar_word.h"
#include "common/security/openssl_owners.h"
#include "common/security/secret_file.h"

namespace deltawire::security {
namespace {

// OpenSSL's default would ask for a passphrase on a terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

StatusOr<std::vector<OwnedCertificate>> ParseCertificates(const std::string& pem) {
  std::vector<OwnedCertificate> all;
  const OwnedBio in = ReadFrom(pem);
  while (X509* one = PEM_read_bio_X509(in.get(), nullptr, NoPassphrase, nullptr)) {
    all.emplace_back(one);
  }
  ERR_clear_error();  // the end of the text is an error too
  if (all.empty()) return absl::InvalidArgumentError("holds no certificate in PEM");
  return all;
}

Status CheckPair(const CredentialMaterial& m, const CredentialPaths& at) {
  const auto chain = ParseCertificates(m.certificate);
  if (!chain.ok()) return Annotate(chain.status(), at.certificate);
  const OwnedBio in = ReadFrom(m.key);
  const OwnedKey key(PEM_read_bio_PrivateKey(in.get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) {
    return Errorf(StatusCode::kInvalidArgument,
                  "{} holds no private key in PEM without a passphrase: {}", at.key,
                  OpensslError());
  }
  if (X509_check_private_key(chain->front().get(), key.get()) != 1) {
    ERR_clear_error();
    return Errorf(StatusCode::kInvalidArgument, "{} is not the key of the first certificate of {}",
                  at.key, at.certificate);
  }
  return {};
}

std::vector<std::string> CredentialKeys() {
  return {"ca", "certificate", "key", "token-file", "server-name"};
}

StatusOr<CredentialPaths> ParseFile(const std::string& file) {
  DW_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file));
  CredentialPaths paths;
  const std::pair<std::string_view, std::string*> keys[] = {{"ca", &paths.ca},
                                                            {"certificate", &paths.certificate},
                                                            {"key", &paths.key},
                                                            {"token-file", &paths.token_file},
                                                            {"server-name", &paths.server_name}};
  try {
    const toml::table table = toml::parse(text, file);
    for (const auto& [key, value] : table) {
      std::string* target = nullptr;
      for (const auto& [name, to] : keys) {
        if (key.str() == name) target = to;
      }
      if (target == nullptr || !value.is_string()) {
        return Errorf(StatusCode::kInvalidArgument,
                      "{}:{}: {} is not one of the keys ca, certificate, key, token-file and "
                      "server-name with a string{}",
                      file, value.source().begin.line, key.str(),
                      target == nullptr ? DidYouMean(key.str(), CredentialKeys()) : "");
      }
      *target = *value.value<std::string>();
    }
  } catch (const toml::parse_error& e) {
    return Errorf(StatusCode::kInvalidArgument, "{}:{}: {}", file, e.source().begin.line,
                  e.description());
  }
  if (paths.certificate.empty() != paths.key.empty()) {
    return Errorf(StatusCode::kInvalidArgument, "{}: `certificate` and `key` go together", file);
  }
  if (!paths.server_name.empty() && paths.ca.empty()) {
    return Errorf(StatusCode::kInvalidArgument,
                  "{}: `server-name` needs `ca`, without which nothing is compared with it", file);
  }
  for (std::string* path : {&paths.ca, &paths.certificate, &paths.key, &paths.token_file}) {
    if (!path->empty()) *path = BesideFile(file, *path);
  }
  return paths;
}

StatusOr<CredentialMaterial> ReadMaterial(const CredentialPaths& at) {
  CredentialMaterial m;
  m.server_name = at.server_name;
  if (!at.ca.empty()) {
    DW_ASSIGN_OR_RETURN(m.authorities, ReadTextFile(at.ca));
    const auto all = ParseCertificates(m.authorities);
    if (!all.ok()) return Annotate(all.status(), at.ca);
  }
  if (!at.certificate.empty()) {
    DW_ASSIGN_OR_RETURN(m.certificate, ReadTextFile(at.certificate));
    DW_ASSIGN_OR_RETURN(m.key, ReadSecretFile(at.key));
    DW_RETURN_IF_ERROR(CheckPair(m, at));
  }
  if (!at.token_file.empty()) {
    DW_ASSIGN_OR_RETURN(m.token, ReadTokenFile(at.token_file));
  }
  return m;
}

StatusOr<Reread<CredentialMaterial>::Reading> ReadAll(const std::string& file) {
  DW_ASSIGN_OR_RETURN(const CredentialPaths paths, ParseFile(file));
  DW_ASSIGN_OR_RETURN(CredentialMaterial material, ReadMaterial(paths));
  std::vector<std::string> files = {file};
  for (const std::string& path : {paths.ca, paths.certificate, paths.key, paths.token_file}) {
    if (!path.empty()) files.push_back(path);
  }
  return Reread<CredentialMaterial>::Reading{
      std::make_shared<const CredentialMaterial>(std::move(material)), std::move(files)};
}

std::chrono::system_clock::time_point TimeOf(const ASN1_TIME* at) {
  std::tm parts{};
  ASN1_TIME_to_tm(at, &parts);
  return std::chrono::system_clock::from_time_t(timegm(&parts));
}

}  // namespace

StatusOr<std::shared_ptr<Credentials>> Credentials::Load(const std::string& file) {
  std::shared_ptr<Credentials> credentials(new Credentials());
  credentials->file_ = file;
  DW_ASSIGN_OR_RETURN(credentials->paths_, ParseFile(file));
  DW_ASSIGN_OR_RETURN(credentials->reread_,
                      Reread<CredentialMaterial>::Create([file] { return ReadAll(file); }));
  return credentials;
}

std::shared_ptr<Credentials> Credentials::None() {
  std::shared_ptr<Credentials> credentials(new Credentials());
  const auto nothing = std::make_shared<const CredentialMaterial>();
  credentials->reread_ = *Reread<CredentialMaterial>::Create(
      [nothing]() -> StatusOr<Reread<CredentialMaterial>::Reading> {
        return Reread<CredentialMaterial>::Reading{nothing, {}};
      });
  return credentials;
}

StatusOr<std::vector<CertificateDates>> DatesOf(const std::string& pem) {
  DW_ASSIGN_OR_RETURN(const std::vector<OwnedCertificate> all, ParseCertificates(pem));
  std::vector<CertificateDates> dates;
  for (const OwnedCertificate& one : all) {
    char subject[256] = "";
    X509_NAME_oneline(X509_get_subject_name(one.get()), subject, sizeof subject);
    dates.push_back({.subject = subject,
                     .from = TimeOf(X509_get0_notBefore(one.get())),
                     .to = TimeOf(X509_get0_notAfter(one.get()))});
  }
  return dates;
}

}  // namespace deltawire::security
