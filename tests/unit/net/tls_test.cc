// Bulk streams over TLS: the same pull, peers that show nothing or the wrong thing, renewed
// certificates, and what a stream proves of its token.
#include "common/net/tls.h"

#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <set>
#include <thread>

#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/tcp.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/net/pull_rig.h"

namespace deltawire::net::tls_test {
namespace {

using Catch::Matchers::Contains;
using security::Credentials;
using testing::Made;
using testing::TestAuthority;

constexpr const char* kToken = "a-token-that-the-receiver-knows";

std::shared_ptr<Tls> TlsOf(const std::string& file, Tls::Side side, bool require = false) {
  return Made(Tls::Create(Made(Credentials::Load(file)), side, require));
}

Status PullOver(Rig& rig, std::shared_ptr<Tls> tls, const std::string& token = "",
                uint16_t streams = 3) {
  PullTarget target = rig.Target(streams);
  target.tls = std::move(tls);
  target.token = token;
  PullClient client(rig.io, target);
  return client.Run(rig.MakeHave(), rig.sink).status();
}

std::string Message(const Status& status) { return std::string(MessageOf(status)); }

}  // namespace

TEST_CASE("a pull over TLS brings every chunk, and the server sees the client's certificate") {
  const TempDir dir;
  const TestAuthority authority(dir.path());
  Rig rig(40, Fault::kNone, 10s, TlsOf(authority.Node("sender"), Tls::Side::kServer, true));
  std::mutex mu;
  std::set<std::string> bindings;
  rig.source.admits = [&](const wire::Hello& hello, const StreamPeer& from) -> Status {
    const auto want = security::ProveToken(kToken, hello.ticket, hello.stream, from.binding);
    if (!hello.proof || !security::SameProof(want, *hello.proof)) {
      return absl::PermissionDeniedError("no proof");
    }
    std::lock_guard lock(mu);
    bindings.emplace(reinterpret_cast<const char*>(from.binding.data()), from.binding.size());
    return std::count(from.certificate_names.begin(), from.certificate_names.end(), "rollout") == 1
               ? Status()
               : absl::PermissionDeniedError("no certificate");
  };
  const auto tls = TlsOf(authority.Node("rollout"), Tls::Side::kClient);
  REQUIRE(PullOver(rig, tls, kToken) == absl::OkStatus());
  CHECK(rig.sink.finished == 40);
  CHECK(rig.sink.in_place);
  CHECK(bindings.size() == 3);  // one for each connection, so a proof cannot be replayed on another
  for (uint32_t chunk = 0; chunk < 40; ++chunk) CHECK(rig.sink.chunks[chunk] == Pattern(chunk));
  CHECK_THAT(Message(PullOver(rig, tls, "a-token-of-somebody-else")), Contains("no proof"));
}

TEST_CASE("who encrypts is said as the kernel says it") {
  const TempDir dir;
  const TestAuthority authority(dir.path());
  Rig rig(4, Fault::kNone, 10s, TlsOf(authority.Node("sender"), Tls::Side::kServer));
  REQUIRE(PullOver(rig, TlsOf(authority.Node("rollout"), Tls::Side::kClient)) == absl::OkStatus());
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(testing::ConnectHere(fd, rig.server->port()));
  constexpr int kTcpUlp = 31;  // TCP_ULP, which not all headers have
  const bool kernel_has = setsockopt(fd, IPPROTO_TCP, kTcpUlp, "tls", sizeof "tls") == 0;
  close(fd);
  const std::string said = KernelTls();
  CAPTURE(said, kernel_has);
  const bool by_kernel = said.starts_with("yes");
  CHECK((by_kernel || said.starts_with("no, ")));
  CHECK((kernel_has || !by_kernel));
  CHECK((kernel_has || said.find("the kernel has none") != std::string::npos ||
         said.find("OpenSSL was built") != std::string::npos));
}

TEST_CASE("a corrupted payload is found under TLS as without") {
  const TempDir dir;
  const TestAuthority authority(dir.path());
  Rig rig(40, Fault::kCorrupt, 10s, TlsOf(authority.Node("sender"), Tls::Side::kServer));
  const Status status = PullOver(rig, TlsOf(authority.Node("rollout"), Tls::Side::kClient));
  CHECK(status.code() == StatusCode::kDataLoss);
}

TEST_CASE("plaintext to a TLS port and TLS to a plaintext port are refused with what to do") {
  const TempDir dir;
  const TestAuthority authority(dir.path());
  Rig secure(4, Fault::kNone, 10s, TlsOf(authority.Node("sender"), Tls::Side::kServer));
  CHECK_THAT(Message(PullOver(secure, nullptr)), Contains("speaks TLS only"));
  Rig plain(4, Fault::kNone);
  const Status status = PullOver(plain, TlsOf(authority.Node("rollout"), Tls::Side::kClient));
  CHECK_FALSE(status.ok());
  CHECK_THAT(Message(status), Contains("TLS handshake"));
  CHECK(secure.sink.finished + plain.sink.finished == 0);
}

TEST_CASE("a peer of another authority, of another host, or without a certificate is refused") {
  const TempDir dir, elsewhere;
  const TestAuthority authority(dir.path()), other(elsewhere.path());
  const auto server = TlsOf(authority.Node("sender"), Tls::Side::kServer, true);
  Rig rig(4, Fault::kNone, 10s, server);
  CHECK_THAT(Message(PullOver(rig, TlsOf(other.Node("rollout"), Tls::Side::kClient))),
             Contains("certificate"));
  CHECK_FALSE(
      PullOver(rig, TlsOf(authority.TokenOnly("nobody", kToken, true), Tls::Side::kClient)).ok());
  Rig misnamed(4, Fault::kNone, 10s,
               TlsOf(authority.Node("far", "", {"10.9.8.7"}), Tls::Side::kServer));
  CHECK_THAT(Message(PullOver(misnamed, TlsOf(authority.Node("rollout"), Tls::Side::kClient))),
             Contains("mismatch"));
  CHECK(rig.sink.finished + misnamed.sink.finished == 0);
  CHECK(PullOver(rig, TlsOf(authority.Node("rollout"), Tls::Side::kClient)).ok());
}

TEST_CASE("a connection beyond the limits is told so through TLS") {
  const TempDir dir;
  const TestAuthority authority(dir.path());
  Rig rig(1, Fault::kSilent);
  rig.server.reset();
  auto listening = PullServer::Listen(rig.io, "127.0.0.1", 0, rig.source,
                                      {.stream_timeout = 10s,
                                       .ping_interval = 50ms,
                                       .max_connections = 2,
                                       .tls = TlsOf(authority.Node("sender"), Tls::Side::kServer)});
  REQUIRE(listening.ok());
  rig.server = std::move(*listening);
  const Status status = PullOver(rig, TlsOf(authority.Node("rollout"), Tls::Side::kClient));
  CHECK(status.code() == StatusCode::kResourceExhausted);
  CHECK_THAT(Message(status), Contains("2 bulk connections"));
  CHECK(rig.server->refused() == 1);
}

TEST_CASE("a renewed certificate counts for the next stream and cuts none") {
  const TempDir dir;
  const TestAuthority authority(dir.path());
  const std::string file = authority.Node("sender");
  const auto credentials = Made(Credentials::Load(file));
  const auto server = Made(Tls::Create(credentials, Tls::Side::kServer));
  Rig rig(4, Fault::kIdleThenEnd, 10s, server);
  const auto client = TlsOf(authority.Node("rollout"), Tls::Side::kClient);
  std::atomic<bool> made_anew = false;
  std::thread renewal([&] {
    rig.source.session->WaitOpened(1);
    const auto before = server->Now();
    authority.Node("sender");
    made_anew = credentials->Reload().ok() && (*server->Now())->context != (*before)->context;
  });
  const Status running = PullOver(rig, client, "", 1);
  renewal.join();
  CHECK(running == absl::OkStatus());
  CHECK(made_anew);
  Rig next(4, Fault::kNone, 10s, server);
  CHECK(PullOver(next, client) == absl::OkStatus());
}

TEST_CASE("a stranger who never stops talking is closed all the same, and others are served") {
  ::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL on this thread
  const TempDir dir;
  const TestAuthority authority(dir.path());
  Rig rig(20, Fault::kNone, 10s, TlsOf(authority.Node("sender"), Tls::Side::kServer));
  const auto context = Made(TlsOf(authority.Node("rollout"), Tls::Side::kClient)->Now());
  std::vector<std::thread> talkers;
  std::atomic<size_t> closed = 0;
  for (int i = 0; i < 4; ++i) {  // more than the server has threads
    talkers.emplace_back([&] {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const bool connected = testing::ConnectHere(fd, rig.server->port());
      SSL* const ssl = SSL_new(context->context.get());
      SSL_set_fd(ssl, fd);
      bool open = connected && SSL_connect(ssl) == 1;
      const auto end = std::chrono::steady_clock::now() + 60s;
      while (open && std::chrono::steady_clock::now() < end) open = SSL_write(ssl, "x", 1) == 1;
      if (!open) ++closed;
      SSL_free(ssl);
      close(fd);
    });
  }
  CHECK(PullOver(rig, TlsOf(authority.Node("rollout"), Tls::Side::kClient)) == absl::OkStatus());
  for (std::thread& talker : talkers) talker.join();
  CHECK(closed == 4);
}

TEST_CASE("a client that stops in the middle of its handshake is closed in time") {
  const TempDir dir;
  const TestAuthority authority(dir.path());
  Rig rig(4, Fault::kNone, 300ms, TlsOf(authority.Node("sender"), Tls::Side::kServer));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(testing::ConnectHere(fd, rig.server->port()));
  const unsigned char half_a_record[] = {0x16, 0x03, 0x01, 0x02, 0x00, 0x01};
  REQUIRE(send(fd, half_a_record, sizeof half_a_record, MSG_NOSIGNAL) == sizeof half_a_record);
  char byte = 0;
  CHECK(recv(fd, &byte, 1, 0) <= 0);  // blocks until the server closes
  close(fd);
  CHECK(testing::Eventually([&] { return rig.server->connections() == 0; }));
}

}  // namespace deltawire::net::tls_test
