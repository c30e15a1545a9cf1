// A server of OpenSSL's own on the other end of a socket pair, and what a probe makes of it.
#include "common/security/tls_probe.h"

#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>
#include <thread>

#include "common/base/sigpipe_blocked.h"
#include "common/base/unique_fd.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_dir.h"

namespace deltawire::security::tls_probe_test {
namespace {

using Catch::Matchers::Contains;
using testing::Made;

CredentialMaterial Material(const IssuedCertificate& authority, const IssuedCertificate& node) {
  return {.authorities = authority.certificate, .certificate = node.certificate, .key = node.key};
}

void UsePem(SSL_CTX* context, const TempDir& dir, const IssuedCertificate& node) {
  testing::WriteFile(dir.path() / "certificate.pem", node.certificate);
  testing::WriteFile(dir.path() / "key.pem", node.key);
  const std::string chain = dir.path() / "certificate.pem", key = dir.path() / "key.pem";
  REQUIRE(SSL_CTX_use_certificate_chain_file(context, chain.c_str()) == 1);
  REQUIRE(SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) == 1);
}

/// Probes, as `own` and for `host`, a port at which `serve` is what happens.
StatusOr<PeerTls> Probe(const CredentialMaterial& own, const std::string& host,
                        const std::function<void(int fd)>& serve) {
  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  const UniqueFd ours(pair[0]);
  std::thread server([&serve, fd = pair[1]] {
    const UniqueFd theirs(fd);
    const SigpipeBlocked no_sigpipe;  // the probe may close before all is written
    serve(fd);
  });
  auto found = ProbeTls(ours.get(), host, own);
  server.join();
  return found;
}

/// A TLS server that shows `node`, and believes clients of `believed` only, if that is given.
StatusOr<PeerTls> ProbeServer(const CredentialMaterial& own, const std::string& host,
                              const IssuedCertificate& node,
                              const IssuedCertificate* believed = nullptr) {
  const TempDir dir;
  SSL_CTX* const context = SSL_CTX_new(TLS_server_method());
  UsePem(context, dir, node);
  if (believed != nullptr) {
    testing::WriteFile(dir.path() / "ca.pem", believed->certificate);
    const std::string ca = dir.path() / "ca.pem";
    REQUIRE(SSL_CTX_load_verify_locations(context, ca.c_str(), nullptr) == 1);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  auto found = Probe(own, host, [context](int fd) {
    SSL* const ssl = SSL_new(context);
    SSL_set_fd(ssl, fd);
    if (SSL_accept(ssl) == 1) SSL_write(ssl, "x", 1);
    SSL_free(ssl);
  });
  SSL_CTX_free(context);
  return found;
}

TEST_CASE("a probe by TLS says whose certificate a port shows, and whether it is believed") {
  using std::chrono::days;
  const IssuedCertificate ours = Made(MakeAuthority("ours", days(1)));
  const IssuedCertificate theirs = Made(MakeAuthority("theirs", days(1)));
  const IssuedCertificate node =
      Made(Issue(ours, "trainer", {"trainer.example", "10.0.0.1"}, days(1)));
  const CredentialMaterial own = Material(ours, node);

  SECTION("all is well") {
    const PeerTls peer = Made(ProbeServer(own, "10.0.0.1", node, &ours));
    CHECK(peer.disbelieved.empty());
    CHECK(peer.refused.empty());
    CHECK_THAT(peer.certificate.subject, Contains("trainer"));
    CHECK_THAT(peer.issuer, Contains("ours"));
    CHECK(peer.names == std::vector<std::string>{"trainer.example", "10.0.0.1"});
    CHECK(peer.certificate.to > std::chrono::system_clock::now());
  }
  SECTION("another authority, of the same name or not") {
    CHECK_THAT(Made(ProbeServer(Material(theirs, node), "10.0.0.1", node)).disbelieved,
               Contains("another authority"));
    const IssuedCertificate namesake = Made(MakeAuthority("ours", days(1)));
    CHECK_THAT(Made(ProbeServer(Material(namesake, node), "10.0.0.1", node)).disbelieved,
               Contains("another authority"));
  }
  SECTION("another host than the one dialled, unless server-name says which") {
    CHECK_THAT(Made(ProbeServer(own, "10.0.0.2", node)).disbelieved, Contains("not for 10.0.0.2"));
    CredentialMaterial named = own;
    named.server_name = "trainer.example";
    CHECK(Made(ProbeServer(named, "10.0.0.2", node)).disbelieved.empty());
  }
  SECTION("a certificate that has ended") {
    const IssuedCertificate old = Made(Issue(ours, "trainer", {"10.0.0.1"}, days(-1)));
    CHECK_THAT(Made(ProbeServer(own, "10.0.0.1", old)).disbelieved, Contains("it has ended"));
  }
  SECTION("a peer that does not believe our certificate") {
    const PeerTls peer = Made(ProbeServer(own, "10.0.0.1", node, &theirs));
    CHECK(peer.disbelieved.empty());
    CHECK_THAT(peer.refused, Contains("unknown ca"));
  }
  SECTION("without authorities nothing is said of belief") {
    CHECK(Made(ProbeServer({}, "10.0.0.1", node)).disbelieved.empty());
  }
  SECTION("a port that does not speak TLS") {
    const Status status = Probe(own, "10.0.0.1", [](int fd) {
                            char hello[512];
                            CHECK(::read(fd, hello, sizeof hello) > 0);
                            CHECK(::write(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28) == 28);
                          }).status();
    CHECK(status.code() == StatusCode::kFailedPrecondition);
    CHECK_THAT(std::string(MessageOf(status)), Contains("no TLS is spoken there"));
    const Status silent = Probe(own, "10.0.0.1", [](int) {}).status();
    CHECK(silent.code() == StatusCode::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace deltawire::security::tls_probe_test
