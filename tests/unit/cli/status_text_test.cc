#include "cli/status_text.h"

#include <catch2/catch.hpp>

#include "cli/child_process.h"
#include "cli/connect.h"
#include "cli/output.h"
#include "proto/client/connect.h"

namespace deltawire::cli {
namespace {

// The error of a connection to a port that nothing listens on.
Status RefusedConnection() {
  const auto port = ReservePort();
  REQUIRE(port.ok());
  const auto sender = DialSender(fmt::format("127.0.0.1:{}", port->number), {});
  REQUIRE(IsAbsent(sender.status()));
  return sender.status();
}

v1::ReceiverStatusResponse ReceiverOf(const std::string& sender) {
  v1::ReceiverStatusResponse response;
  response.set_receiver_id("node-7.rack-12.cluster.example:7710");
  v1::ReceiverModelStatus& m = *response.add_models();
  m.set_model("policy");
  m.set_directory("/dev/shm/deltawire/policy");
  m.set_sender(sender);
  m.set_attached(true);
  m.set_phase("idle");
  m.set_model_bytes(1'190'000'000);
  return response;
}

TEST_CASE("status: on an engine's node the receiver's sender is named, not the one at loopback") {
  DaemonAnswers s{.sender_address = "127.0.0.1:7700", .receiver_address = "127.0.0.1:7710"};
  s.sender = RefusedConnection();
  s.receiver = ReceiverOf("host-a:7700");
  CHECK(
      StatusText(s).starts_with("No sender on this node; its receiver follows host-a:7700 (pass "));
  // A sender that was asked for by name, or that the receiver follows, is missed.
  s.sender_named = true;
  CHECK(StatusText(s).starts_with("sender 127.0.0.1:"));
  s.sender_named = false;
  s.receiver = ReceiverOf("127.0.0.1:7700");
  CHECK(StatusText(s).starts_with("sender 127.0.0.1:"));
  // Another failure than its absence is told.
  s.receiver = ReceiverOf("host-a:7700");
  s.sender = UnreachableError("sender 127.0.0.1:7700: its port speaks TLS");
  CHECK(StatusText(s).starts_with("sender 127.0.0.1:7700: its port speaks TLS"));
}

TEST_CASE("status: all lines fit, and nothing is lost that a wide terminal shows") {
  DaemonAnswers s{.sender_address = "host-a:7700", .receiver_address = "127.0.0.1:7710"};
  s.receiver = ReceiverOf("host-a:7700");
  v1::SenderStatusResponse sender;
  v1::SenderModelStatus& m = *sender.add_models();
  m.set_model("policy");
  m.set_oldest_base(5);
  m.set_log_bytes(2'100'000);
  s.sender = sender;
  v1::ReceiverInfo& r = *s.attached.add_receivers();
  r.set_receiver_id("node-7.rack-12.cluster.example:7710");
  r.set_model("policy");
  r.set_message("the connection to sender host-a:7700 ended, and it tries again every second");
  for (const size_t width : {60, 80, 120}) {
    const std::string text = StatusText(s, width);
    CAPTURE(width, text);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      CHECK(DisplayWidth(text.substr(begin, end - begin)) <= width);
      begin = end + 1;
    }
    std::string words;
    for (const char c : text) {
      if (c != '\n' && !(c == ' ' && words.ends_with(' '))) words += c;
      if (c == '\n' && !words.ends_with(' ')) words += ' ';
    }
    for (const char* part : {"2.10 MB", "/dev/shm/deltawire/policy", "tries again every second",
                             "node-7.rack-12.cluster.example:7710"}) {
      CHECK(words.find(part) != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace deltawire::cli
