// The words for an address that gives no service, at real ports.
#include "proto/client/diagnosis.h"

#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "common/wire/frame.h"
#include "proto/client/connect.h"
#include "proto/client/tcp.h"
#include "proto/control_server.h"
#include "proto/deltawire/v1/receiver.grpc.pb.h"
#include "proto/deltawire/v1/sender.grpc.pb.h"
#include "tests/support/certificates.h"
#include "tests/support/tcp.h"
#include "tests/support/temp_dir.h"

namespace deltawire::diagnosis_test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using std::chrono::milliseconds;
using testing::Made;

constexpr milliseconds kLimit(5000);

class AnyReceiver final : public v1::ReceiverService::Service {
  grpc::Status GetStatus(grpc::ServerContext*, const v1::ReceiverStatusRequest*,
                         v1::ReceiverStatusResponse*) override {
    return grpc::Status::OK;
  }
};

class AnySender final : public v1::SenderService::Service {
  grpc::Status GetStatus(grpc::ServerContext*, const v1::SenderStatusRequest*,
                         v1::SenderStatusResponse*) override {
    return grpc::Status::OK;
  }
};

struct ServerOf {
  explicit ServerOf(grpc::Service& service, std::shared_ptr<Access> by = Access::Open())
      : access(std::move(by)),
        control(Made(ControlServer::Start("127.0.0.1:0", {&service}, *access))) {}
  std::string address() const { return fmt::format("127.0.0.1:{}", control->port()); }
  std::shared_ptr<Access> access;
  std::unique_ptr<ControlServer> control;
};

/// A port that says `answer` to whoever says something, and closes.
class Talker {
 public:
  explicit Talker(std::string answer)
      : fd_(::socket(AF_INET, SOCK_STREAM, 0)),
        port_(testing::Listen(fd_, "127.0.0.1", 0)),
        answer_(std::move(answer)),
        thread_([this] { Run(); }) {}
  ~Talker() {
    ::shutdown(fd_, SHUT_RDWR);
    thread_.join();
    ::close(fd_);
  }
  std::string address() const { return fmt::format("127.0.0.1:{}", port_); }

 private:
  void Run() {
    while (true) {
      const int peer = ::accept(fd_, nullptr, nullptr);
      if (peer < 0) return;
      char said[4096];
      SetTimeout(peer, milliseconds(200));
      (void)::recv(peer, said, sizeof said, 0);
      (void)::send(peer, answer_.data(), answer_.size(), MSG_NOSIGNAL);
      ::close(peer);
    }
  }

  const int fd_;
  const uint16_t port_;
  const std::string answer_;
  std::thread thread_;
};

// The message about a sender at `address`.
std::string Said(const std::string& address, security::Credentials& credentials) {
  const DialedPeer peer{"sender", address, credentials, {}};
  const auto channel = ConnectControl(peer, kLimit);
  REQUIRE_FALSE(channel.ok());
  CHECK(channel.status().code() == StatusCode::kUnavailable);
  return std::string(MessageOf(channel.status()));
}

std::string Said(const std::string& address) {
  return Said(address, *security::Credentials::None());
}

TEST_CASE("an address where no daemon listens, or of no host") {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const std::string dead = fmt::format("127.0.0.1:{}", testing::Listen(fd, "127.0.0.1", 0));
  ::close(fd);
  CHECK(Said(dead) == fmt::format("sender {}: nothing listens there (connection refused); start "
                                  "deltawire-sender there, or check the address",
                                  dead));
  CHECK_THAT(Said("no-such-host.invalid:7700"),
             Contains("no address is known for \"no-such-host.invalid\""));
  const auto none = security::Credentials::None();
  const Status refused = ConnectControl({"sender", dead, *none, {}}, kLimit).status();
  CHECK(IsAbsent(refused));
  CHECK_FALSE(IsAbsent(absl::UnavailableError("away")));
}

TEST_CASE("a port of another protocol is told by its first words") {
  std::string error(64, '\0');
  const uint32_t magic = wire::kMagic;
  std::memcpy(error.data(), &magic, sizeof magic);
  CHECK_THAT(Said(Talker(error).address()), Contains("that is a bulk port"));
  CHECK_THAT(Said(Talker("HTTP/1.1 400 Bad Request\r\n\r\n").address()),
             Contains("that port speaks HTTP/1"));
  CHECK_THAT(Said(Talker("SSH-2.0-OpenSSH_9.6\r\n").address()), Contains("another program"));
}

TEST_CASE("a port that takes connections and says nothing is no closed one") {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const std::string mute = fmt::format("127.0.0.1:{}", testing::Listen(fd, "127.0.0.1", 0));
  const auto none = security::Credentials::None();
  const auto start = std::chrono::steady_clock::now();
  const Status late = ConnectControl({"sender", mute, *none, {}}, milliseconds(300)).status();
  CHECK_THAT(std::string(MessageOf(late)),
             StartsWith(fmt::format(
                 "sender {}: no answer in 300 ms, although its port takes connections; ", mute)));
  CHECK(std::chrono::steady_clock::now() - start < milliseconds(30000));
  ::close(fd);
}

TEST_CASE("TLS at one end only, and certificates that one end does not believe") {
  const TempDir dir;
  const testing::TestAuthority ours(dir.path() / "ours"), theirs(dir.path() / "theirs");
  AnySender service;
  const ServerOf plain(service);
  const ServerOf guarded(
      service,
      Made(Access::Load(ours.Node("trainer"),
                        ours.Principals("require-certificate = true\n"
                                        "[[principal]]\nname = 'trainer'\n"
                                        "roles = ['operator']\ncertificate = 'trainer'\n"))));
  const auto none = security::Credentials::None();
  const auto own = Made(security::Credentials::Load(ours.Node("me")));
  const auto other = Made(security::Credentials::Load(theirs.Node("me")));

  CHECK_THAT(Said(guarded.address(), *none),
             Contains("its port speaks TLS, and this side has no keys; pass credentials"));
  CHECK_THAT(Said(plain.address(), *own), Contains("its port speaks no TLS, and " + own->file()));
  CHECK_THAT(Said(guarded.address(), *other),
             Contains("is not believed: it is of another authority"));
  const auto token = Made(
      security::Credentials::Load(ours.TokenOnly("bare", "a-token-of-some-length-here", false)));
  CHECK_THAT(Said(guarded.address(), *token), Contains(token->file() + " has no `ca`"));
  CHECK(ConnectControl({"sender", guarded.address(), *own, {}}, kLimit).ok());
}

TEST_CASE("a daemon of the other role is told from an older release and from another server") {
  const auto none = security::Credentials::None();
  const grpc::Status unknown(grpc::StatusCode::UNIMPLEMENTED, "");
  const auto said = [&](std::string_view who, const std::string& address) {
    const Status status = CheckAnswer(unknown, {who, address, *none, {}});
    CHECK(status.code() == StatusCode::kFailedPrecondition);
    return std::string(MessageOf(status));
  };
  AnySender sender;
  AnyReceiver receiver;
  const ServerOf of_sender(sender), of_receiver(receiver);
  CHECK(said("sender", of_receiver.address()) ==
        fmt::format("sender {}: a receiver listens there, and no sender; check the address",
                    of_receiver.address()));
  CHECK_THAT(said("receiver", of_sender.address()), Contains("a sender listens there"));
  CHECK_THAT(said("sender", of_sender.address()), Contains("of an older release"));
  v1::PullService::Service pulls;
  const ServerOf of_neither(pulls);
  CHECK_THAT(said("sender", of_neither.address()), Contains("another gRPC server"));
}

TEST_CASE("who shows nothing and may not is told how to show something") {
  const auto none = security::Credentials::None();
  const grpc::Status denied(grpc::StatusCode::PERMISSION_DENIED, "anonymous may not call X");
  CHECK(MessageOf(CheckAnswer(denied, {"sender", "a:1", *none, {}})) ==
        "sender a:1: anonymous may not call X; pass credentials");
}

}  // namespace
}  // namespace deltawire::diagnosis_test
