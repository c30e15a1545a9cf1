// Channels to a peer whose answers were garbled on their way.
#include "proto/dial.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <string_view>
#include <thread>

#include "proto/deltawire/v1/sender.grpc.pb.h"
#include "tests/support/certificates.h"
#include "tests/support/tcp.h"

namespace deltawire::dial_test {
namespace {

using testing::Made;

constexpr uint8_t kHeaders = 1, kSettings = 4;      // types of frames (RFC 9113, 6)
constexpr uint8_t kEndStream = 1, kEndHeaders = 4;  // flags of kHeaders
constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr std::string_view kStatus200 = "\x88";  // of the static table (RFC 7541, A)

// A header that no table holds (RFC 7541, 6.2.2).
std::string Literal(std::string_view name, std::string_view value) {
  std::string s(1, '\0');
  for (const std::string_view part : {name, value}) {
    s += static_cast<char>(part.size());
    s += part;
  }
  return s;
}

std::string FrameOf(uint8_t type, uint8_t flags, uint8_t stream, std::string_view payload) {
  std::string s = {'\0',
                   '\0',
                   static_cast<char>(payload.size()),
                   static_cast<char>(type),
                   static_cast<char>(flags),
                   '\0',
                   '\0',
                   '\0',
                   static_cast<char>(stream)};
  return s.append(payload);
}

/// Speaks as much HTTP/2 as answers one call, with trailers of the test's choice.
class Answering {
 public:
  explicit Answering(std::string trailers) : trailers_(std::move(trailers)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    port_ = testing::Listen(listener_, "127.0.0.1", 0);
    thread_ = std::thread([this] { Serve(); });
  }
  ~Answering() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  uint16_t port() const { return port_; }

 private:
  static bool Read(int fd, std::string& to, size_t bytes) {
    to.resize(bytes);
    return bytes == 0 || recv(fd, to.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
  }
  static void Write(int fd, const std::string& bytes) {
    send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  void Serve() {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    std::string head, payload;
    bool good = Read(fd, head, kPreface.size()) && head == kPreface;
    Write(fd, FrameOf(kSettings, 0, 0, ""));
    while (good && Read(fd, head, 9)) {
      const auto byte = [&](size_t i) { return static_cast<uint8_t>(head[i]); };
      good = Read(fd, payload, size_t{byte(0)} << 16 | size_t{byte(1)} << 8 | byte(2));
      if (byte(3) != kHeaders) continue;
      Write(fd, FrameOf(kHeaders, kEndHeaders, byte(8),
                        std::string(kStatus200) + Literal("content-type", "application/grpc")));
      Write(fd, FrameOf(kHeaders, kEndHeaders | kEndStream, byte(8), trailers_));
    }
    close(fd);
  }

  const std::string trailers_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::thread thread_;
};

grpc::Status Call(uint16_t port) {
  const auto none = security::Credentials::None();
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel = Made(DialControl(fmt::format("127.0.0.1:{}", port), *none, args));
  const auto stub = v1::SenderService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  v1::SenderStatusResponse response;
  return stub->GetStatus(&context, {}, &response);
}

TEST_CASE("DialControl: an answer without a status fails the call and not the process") {
  // With the status the answer is one, so that without it nothing else is wrong with it.
  Answering whole(Literal("grpc-status", "5") + Literal("grpc-message", "none"));
  const grpc::Status told = Call(whole.port());
  CHECK(told.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(told.error_message() == "none");

  Answering garbled(Literal("grpc-stat5s", "5") + Literal("grpc-message", "none"));
  CHECK(Call(garbled.port()).error_code() == grpc::StatusCode::UNKNOWN);
}

}  // namespace
}  // namespace deltawire::dial_test
