// Certificates for tests: an authority and nodes' directories with credentials.toml, as
// `deltawire certs` makes them. Owner: a test case, of the directory. Threads: one. Cost:
// milliseconds. Errors: std::runtime_error.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/security/certificate_issuer.h"

namespace deltawire::testing {

inline void WriteFile(const std::filesystem::path& at, const std::string& text,
                      mode_t mode = 0600) {
  std::ofstream(at, std::ios::trunc) << text;
  if (::chmod(at.c_str(), mode) != 0) throw std::runtime_error("chmod " + at.string());
}

template <typename T>
T Made(absl::StatusOr<T> made) {
  if (!made.ok()) throw std::runtime_error(std::string(MessageOf(made.status())));
  return *std::move(made);
}

class TestAuthority {
 public:
  explicit TestAuthority(std::filesystem::path root)
      : root_(std::move(root)), ca_(Made(security::MakeAuthority("test", std::chrono::days(1)))) {
    std::filesystem::create_directories(root_);
  }

  /// Writes (or renews) the node's directory, and returns its credentials file. A token that is not
  /// empty is written too.
  std::string Node(const std::string& name, const std::string& token = "",
                   const std::vector<std::string>& hosts = {"127.0.0.1", "localhost"}) const {
    const auto made = Made(security::Issue(ca_, name, hosts, std::chrono::days(1)));
    const std::filesystem::path at = root_ / name;
    std::filesystem::create_directories(at);
    WriteFile(at / "ca.pem", ca_.certificate);
    WriteFile(at / "certificate.pem", made.certificate);
    WriteFile(at / "key.pem", made.key);
    std::string text = "ca = 'ca.pem'\ncertificate = 'certificate.pem'\nkey = 'key.pem'\n";
    if (!token.empty()) {
      WriteFile(at / "token", token + "\n");
      text += "token-file = 'token'\n";
    }
    WriteFile(at / "credentials.toml", text);
    return at / "credentials.toml";
  }
  /// Credentials that show the token and no certificate.
  std::string TokenOnly(const std::string& name, const std::string& token, bool tls) const {
    const std::filesystem::path at = root_ / name;
    std::filesystem::create_directories(at);
    WriteFile(at / "ca.pem", ca_.certificate);
    WriteFile(at / "token", token + "\n");
    WriteFile(at / "credentials.toml",
              std::string(tls ? "ca = 'ca.pem'\n" : "") + "token-file = 'token'\n");
    return at / "credentials.toml";
  }
  /// Writes a file of principals.
  std::string Principals(const std::string& text) const {
    WriteFile(root_ / "principals.toml", text);
    return root_ / "principals.toml";
  }

  const security::IssuedCertificate& ca() const { return ca_; }
  const std::filesystem::path& root() const { return root_; }

 private:
  const std::filesystem::path root_;
  const security::IssuedCertificate ca_;
};

}  // namespace deltawire::testing
