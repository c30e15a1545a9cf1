#include <catch2/catch.hpp>
#include <string>

#include "common/config/options.h"

namespace deltawire::endpoint_test {
namespace {

TEST_CASE("endpoints are read and written back") {
  struct {
    const char* text;
    const char* host;
    uint16_t port;
    const char* written;
  } const cases[] = {
      {"127.0.0.1:7700", "127.0.0.1", 7700, "127.0.0.1:7700"},
      {":0", "127.0.0.1", 0, "127.0.0.1:0"},
      {"[::1]:65535", "::1", 65535, "[::1]:65535"},
      {"[fe80::1%eth0]:1", "fe80::1%eth0", 1, "[fe80::1%eth0]:1"},
      {"node-3.cluster.local:80", "node-3.cluster.local", 80, "node-3.cluster.local:80"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.text);
    const auto endpoint = ParseEndpoint(c.text);
    REQUIRE(endpoint.ok());
    CHECK(endpoint->host == c.host);
    CHECK(endpoint->port == c.port);
    CHECK(ToString(*endpoint) == c.written);
  }
}

TEST_CASE("what is not an endpoint is refused with its text") {
  for (const std::string text :
       {"",        "7700",           "localhost", "host:",    "host:x", "host:65536", "host:-1",
        "host:+1", "host: 1",        "host:1 ",   "ho st:1",  "::1:80", "[::1]",      "[::1]80",
        "[::1:80", "[127.0.0.1]:80", "[]:80",     "[::g]:80", "a/b:1",  "http://a:1"}) {
    CAPTURE(text);
    const Status status = ParseEndpoint(text).status();
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(std::string(MessageOf(status)).find("\"" + text + "\"") == 0);
  }
}

TEST_CASE("loopback is what only this machine reaches") {
  for (const char* host : {"127.0.0.1", "127.255.0.9", "::1", "0:0::1", "::ffff:127.0.0.1",
                           "localhost", "LOCALHOST"}) {
    CAPTURE(host);
    CHECK(IsLoopback({host, 1}));
  }
  for (const char* host : {"0.0.0.0", "128.0.0.1", "10.0.0.1", "::", "::2", "::ffff:10.0.0.1",
                           "localhost.example.com", "127.0.0.1.example.com", "127.1", ""}) {
    CAPTURE(host);
    CHECK_FALSE(IsLoopback({host, 1}));
  }
}

}  // namespace
}  // namespace deltawire::endpoint_test
