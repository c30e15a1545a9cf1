// The metrics port as a scraper sees it: histograms that count what ended, what is said of the
// process, and paths that are not there.
#include "common/metrics/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <ctime>
#include <map>
#include <thread>

#include "common/base/acceptor.h"
#include "common/base/sync.h"
#include "common/metrics/http_port.h"
#include "common/metrics/page.h"
#include "common/metrics/process.h"
#include "common/metrics/stage_histograms.h"
#include "tests/support/http_get.h"

namespace deltawire::metrics::metrics_test {
namespace {

using testing::HttpGet;

/// A port that was free a moment ago.
uint16_t FreePort() { return PortOf(*ListenTcp("127.0.0.1", 0)); }

/// Series and their values, of an answer's body.
std::map<std::string, double> Series(const std::string& answer) {
  std::map<std::string, double> series;
  size_t at = answer.find("\r\n\r\n");
  REQUIRE(at != std::string::npos);
  at += 4;
  while (at < answer.size()) {
    const size_t end = std::min(answer.find('\n', at), answer.size());
    const std::string line = answer.substr(at, end - at);
    at = end + 1;
    const size_t blank = line.rfind(' ');
    if (line.empty() || line[0] == '#' || blank == std::string::npos) continue;
    series[line.substr(0, blank)] = std::stod(line.substr(blank + 1));
  }
  return series;
}

TEST_CASE("metrics: a scrape has samples, histograms of what ended, and the process") {
  const auto stages = std::make_shared<StageHistograms>("sender");
  const StageObserver observer = ObserverOf(stages);
  const uint16_t port = FreePort();
  const auto server = Server::Start(
      fmt::format("127.0.0.1:{}", port),
      {[] {
         return std::vector<Sample>{{"x_total", "X", Kind::kCounter, {{"model", "m"}}, 3}};
       },
       stages});
  REQUIRE(server.ok());
  observer({Stage::kDiff, 0.002, "m"});
  observer({Stage::kDiff, 0.2, "m"});
  observer({Stage::kDiff, 1000, "m"});
  observer({Stage::kCommit, 0.5, "m"});
  observer({Stage::kLoad, 0.5, "m", "e:1", "vllm"});
  auto series = Series(HttpGet(port, "/metrics"));
  CHECK(series.at("x_total{model=\"m\"}") == 3);
  const std::string diff = "{model=\"m\",stage=\"diff\"";
  CHECK(series.at("deltawire_sender_stage_seconds_count" + diff + "}") == 3);
  CHECK(series.at("deltawire_sender_stage_seconds_sum" + diff + "}") == Approx(1000.202));
  const auto bucket = [&](const std::string& le) {
    return series.at("deltawire_sender_stage_seconds_bucket" + diff + ",le=\"" + le + "\"}");
  };
  CHECK(bucket("0.001") == 0);
  CHECK(bucket("0.003") == 1);
  CHECK(bucket("0.1") == 1);
  CHECK(bucket("0.3") == 2);
  CHECK(bucket("100") == 2);
  CHECK(bucket("+Inf") == 3);
  CHECK(series.at("deltawire_sender_stage_seconds_count{model=\"m\",stage=\"commit\"}") == 1);
  CHECK(series.at("deltawire_sender_engine_stage_seconds_count{engine=\"e:1\",kind=\"vllm\","
                  "model=\"m\",stage=\"load\"}") == 1);
  CHECK(series.at("process_resident_memory_bytes") > 1 << 20);
  // A scrape counts nothing itself.
  series = Series(HttpGet(port, "/metrics"));
  CHECK(series.at("deltawire_sender_stage_seconds_count" + diff + "}") == 3);
}

TEST_CASE("metrics: other paths are not found, and a port in use is said to be") {
  const uint16_t port = FreePort();
  const std::string at = fmt::format("127.0.0.1:{}", port);
  const auto none = [] { return std::vector<Sample>{}; };
  const auto server = Server::Start(at, {none, nullptr});
  REQUIRE(server.ok());
  CHECK(HttpGet(port, "/metrics").starts_with("HTTP/1.1 200"));
  for (const char* path : {"/metrics/", "/metrics/x", "/../etc/passwd", "/x"}) {
    CAPTURE(path);
    CHECK(HttpGet(port, path).substr(8, 3) == " 40");  // after the version of HTTP
  }
  const auto second = Server::Start(at, {none, nullptr});
  CHECK(second.status().code() == StatusCode::kAlreadyExists);
}

TEST_CASE("metrics: the page says how it may be shown, and is made once a second at most") {
  const uint16_t port = FreePort();
  int made = 0;
  Shown shown{[] { return std::vector<Sample>{}; }, nullptr,
              [&made] { return fmt::format("<p>page {}</p>", ++made); }};
  const auto server = Server::Start(fmt::format("127.0.0.1:{}", port), std::move(shown));
  REQUIRE(server.ok());
  const auto start = SteadyClock::now();
  const std::string first = HttpGet(port, "/");
  CHECK(first.starts_with("HTTP/1.1 200"));
  CHECK(first.ends_with("\r\n\r\n<p>page 1</p>"));
  CHECK(first.find("\r\nContent-Type: text/html; charset=utf-8\r\n") != std::string::npos);
  CHECK(first.find(fmt::format("\r\nContent-Security-Policy: {}\r\n", kPagePolicy)) !=
        std::string::npos);
  CHECK(first.find("\r\nX-Content-Type-Options: nosniff\r\n") != std::string::npos);
  CHECK(HttpGet(port, "/?x").ends_with("<p>page 1</p>"));
  CHECK(HttpGet(port, "/x").substr(8, 3) == " 40");
  // On a busy machine the server refuses some of so many connections.
  while (!HttpGet(port, "/").ends_with("<p>page 2</p>")) {
    REQUIRE(SteadyClock::now() - start < std::chrono::seconds(60));
  }
  CHECK(SteadyClock::now() - start >= std::chrono::seconds(1));
}

TEST_CASE("metrics: who asks for the page and does not read it does not hold up a scrape") {
  const uint16_t port = FreePort();
  Shown shown{[] { return std::vector<Sample>{}; }, nullptr,
              [] { return std::string(32 << 20, 'x'); }};  // more than sockets take
  const auto server = Server::Start(fmt::format("127.0.0.1:{}", port), std::move(shown));
  REQUIRE(server.ok());
  const auto start = SteadyClock::now();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 3; ++i) {
    silent.push_back(testing::SendGet(port, "/"));
    char one = 0;  // its thread has begun to write
    REQUIRE(recv(silent.back().get(), &one, 1, 0) == 1);
  }
  CHECK(HttpGet(port, "/metrics").starts_with("HTTP/1.1 200"));
  // They lose their threads after 5 s anyway.
  CHECK(SteadyClock::now() - start < std::chrono::seconds(5));
}

TEST_CASE("metrics: whoever opens many connections does not keep another address from scraping") {
  const uint16_t port = FreePort();
  const auto none = [] { return std::vector<Sample>{}; };
  const auto server = Server::Start(fmt::format("127.0.0.1:{}", port), {none, nullptr});
  REQUIRE(server.ok());
  const auto connect_from = [&](const char* address) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in from{}, to{};
    from.sin_family = to.sin_family = AF_INET;
    inet_pton(AF_INET, address, &from.sin_addr);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    to.sin_port = htons(port);
    REQUIRE(bind(fd.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from) == 0);
    REQUIRE(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
    return fd;
  };
  // Each says nothing. Those beyond the limit are closed, which is how one sees that all were
  // taken.
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(connect_from("127.0.0.2"));
  size_t closed = 0;
  for (size_t i = HttpPort::kMostOfAddress; i < silent.size(); ++i) {
    char one = 0;
    closed += recv(silent[i].get(), &one, 1, 0) == 0 ? 1 : 0;
  }
  CHECK(closed == silent.size() - HttpPort::kMostOfAddress);
  const auto start = SteadyClock::now();
  CHECK(HttpGet(port, "/metrics").starts_with("HTTP/1.1 200"));
  CHECK(SteadyClock::now() - start < std::chrono::seconds(3));
}

TEST_CASE("metrics: a request that is none is answered so, and one that is too long is not") {
  const uint16_t port = FreePort();
  const auto none = [] { return std::vector<Sample>{}; };
  const auto server = Server::Start(fmt::format("127.0.0.1:{}", port), {none, nullptr});
  REQUIRE(server.ok());
  const auto says = [&](const std::string& request) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    to.sin_port = htons(port);
    REQUIRE(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
    REQUIRE(send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) > 0);
    std::string answer;
    char piece[512];
    for (ssize_t n = 0; (n = recv(fd.get(), piece, sizeof piece, 0)) > 0;) {
      answer.append(piece, static_cast<size_t>(n));
    }
    return answer.substr(0, 12);
  };
  CHECK(says("POST /metrics HTTP/1.1\r\n\r\n") == "HTTP/1.1 405");
  CHECK(says("nonsense\r\n\r\n") == "HTTP/1.1 400");
  CHECK(says("GET /metrics HTTP/1.1\r\n" + std::string(20000, 'x')) == "");
}

TEST_CASE("metrics: what is said of the process follows it") {
  const auto value = [](const std::string& name) {
    for (const Sample& s : ProcessSamples()) {
      if (s.name == name) return s.value;
    }
    return std::nan("");
  };
  std::thread([] {}).join();  // with its first thread a process gets the sanitizer's own, too
  const double threads = value("process_threads");
  const double fds = value("process_open_fds");
  CHECK(threads >= 1);
  {
    const auto socket = ListenTcp("127.0.0.1", 0);
    REQUIRE(socket.ok());
    CHECK(value("process_open_fds") == fds + 1);
    double more = 0;
    std::thread([&] { more = value("process_threads"); }).join();
    CHECK(more == threads + 1);
  }
  CHECK(value("process_max_fds") >= fds);
  CHECK(value("process_cpu_seconds_total") > 0);
  CHECK(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"));
  const auto now = static_cast<double>(time(nullptr));
  CHECK(value("process_start_time_seconds") > now - 3600);
  CHECK(value("process_start_time_seconds") <= now + 2);
}

}  // namespace
}  // namespace deltawire::metrics::metrics_test
