// Files of credentials: what is taken, what is refused and why, and that they are read again.
#include "common/security/credentials.h"

#include <catch2/catch.hpp>

#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_dir.h"

namespace deltawire::security::credentials_test {
namespace {

using Catch::Matchers::Contains;
using testing::TestAuthority;
using testing::WriteFile;

constexpr const char* kToken = "0123456789abcdef0123456789abcdef";

std::string Refusal(const std::string& file) {
  const auto loaded = Credentials::Load(file);
  return loaded.ok() ? "" : std::string(MessageOf(loaded.status()));
}

}  // namespace

TEST_CASE("credentials name files beside their own, and say what they serve and dial") {
  const TempDir dir;
  const TestAuthority authority(dir.path());
  const auto both = testing::Made(Credentials::Load(authority.Node("a", kToken)));
  CHECK(both->serves_tls());
  CHECK(both->dials_tls());
  CHECK(both->Now()->token == kToken);
  CHECK(both->Now()->authorities == authority.ca().certificate);
  const auto token = testing::Made(Credentials::Load(authority.TokenOnly("b", kToken, false)));
  CHECK_FALSE(token->serves_tls());
  CHECK_FALSE(token->dials_tls());
  const auto none = Credentials::None();
  CHECK_FALSE(none->serves_tls());
  CHECK(none->Now()->token.empty());
}

TEST_CASE("credentials that cannot be right are refused with the file and the reason") {
  const TempDir dir;
  const TestAuthority authority(dir.path());
  authority.Node("other");
  const auto file = dir.path() / "a" / "credentials.toml";
  const auto with = [&](const std::string& text) {
    authority.Node("a", kToken);
    WriteFile(file, text);
    return Refusal(file);
  };
  CHECK_THAT(with("ca = 3\n"), Contains("credentials.toml:1: ca is not one of the keys"));
  CHECK_THAT(with("pem = 'ca.pem'\n"), Contains("pem is not one of the keys"));
  CHECK_THAT(with("ca = \n"), Contains("credentials.toml:1: "));
  CHECK_THAT(with("certificate = 'certificate.pem'\n"), Contains("go together"));
  CHECK_THAT(with("server-name = 'x'\n"), Contains("needs `ca`"));
  CHECK_THAT(with("ca = 'missing.pem'\n"), Contains("missing.pem"));
  CHECK_THAT(with("ca = 'token'\n"), Contains("holds no certificate"));
  CHECK_THAT(with("certificate = 'certificate.pem'\nkey = '../other/key.pem'\n"),
             Contains("is not the key of the first certificate"));
  CHECK_THAT(with("certificate = 'certificate.pem'\nkey = 'token'\n"),
             Contains("holds no private key"));
  CHECK_THAT(Refusal(dir.path() / "none.toml"), Contains("none.toml"));
}

TEST_CASE("a secret that everybody may read is refused, and no message holds it") {
  const TempDir dir;
  const TestAuthority authority(dir.path());
  const std::string file = authority.Node("a", kToken);
  ::chmod((dir.path() / "a" / "token").c_str(), 0644);
  CHECK_THAT(Refusal(file), Contains("token") && Contains("chmod 600") && !Contains(kToken));
  ::chmod((dir.path() / "a" / "token").c_str(), 0640);
  CHECK(Refusal(file) == "");
  ::chmod((dir.path() / "a" / "key.pem").c_str(), 0604);
  CHECK_THAT(Refusal(file), Contains("key.pem") && Contains("0604"));
  ::chmod((dir.path() / "a" / "key.pem").c_str(), 0600);
  for (const char* wrong : {"short", "two words are not a token", ""}) {
    WriteFile(dir.path() / "a" / "token", wrong);
    CHECK_THAT(Refusal(file), Contains("visible ASCII") && !Contains("two words"));
  }
}

TEST_CASE("changed files are read again, and broken ones leave the old in use") {
  const TempDir dir;
  const TestAuthority authority(dir.path());
  const auto credentials = testing::Made(Credentials::Load(authority.Node("a", kToken)));
  const std::string before = credentials->Now()->certificate;
  authority.Node("a", "another-token-of-32-characters!!");
  CHECK(testing::Eventually([&] { return credentials->Now()->certificate != before; }));
  CHECK(credentials->Now()->token == "another-token-of-32-characters!!");
  WriteFile(dir.path() / "a" / "key.pem", "rubbish");
  CHECK_THAT(std::string(MessageOf(credentials->Reload())), Contains("key.pem"));
  CHECK(credentials->Now()->token == "another-token-of-32-characters!!");
  CHECK(credentials->Now()->key != "rubbish");
}

TEST_CASE("an issued certificate is valid for the days and the hosts that it was asked for") {
  const auto ca = testing::Made(MakeAuthority("ca", std::chrono::days(10)));
  const auto issued =
      testing::Made(Issue(ca, "node", {"10.0.0.1", "::1", "node.example"}, std::chrono::days(3)));
  const auto dates = testing::Made(DatesOf(issued.certificate));
  REQUIRE(dates.size() == 1);
  CHECK_THAT(dates[0].subject, Contains("node"));
  const auto now = std::chrono::system_clock::now();
  CHECK(dates[0].from < now);
  CHECK(dates[0].to > now + std::chrono::hours(71));
  CHECK(dates[0].to < now + std::chrono::hours(73));
  for (const char* name : {"", "a=b", "a,b", "with space"}) {
    CHECK_FALSE(Issue(ca, name, {}, std::chrono::days(1)).ok());
  }
  CHECK_FALSE(Issue(ca, "a", {"not,a,host"}, std::chrono::days(1)).ok());
}

}  // namespace deltawire::security::credentials_test
