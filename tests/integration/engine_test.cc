// The real receiver brings engines to what it commits, and says what they serve. The engines are
// stand-ins behind real sockets, with the real engine client in them; a real vLLM is in
// tests/engines.
#include <signal.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/daemons.h"
#include "tests/support/engine_stand_in.h"
#include "tests/support/http_get.h"

namespace deltawire::testing::engine_test {
namespace {

using Calls = std::vector<std::string>;
using Fault = EngineStandIn::Fault;
using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kModel = "m";

const Calls kUpdate = {"prepare",
                       "/pause",
                       "apply",
                       "/reset_prefix_cache",
                       "/reset_encoder_cache",
                       "prove",
                       "/update_weight_version",
                       "/resume"};

struct Tool {
  Tool(const ShmDir& root, const std::vector<std::string>& args)
      : log(root.path() / fmt::format("tool-{}.log", runs++)),
        child(Spawn("deltawire", args, log)) {}
  Tool(const ShmDir& root, std::vector<std::string> args, const ReceiverProcess& receiver)
      : Tool(root, (args.insert(args.end(), {"--receiver", receiver.control()}), args)) {}
  int Wait() { return child->Wait(std::chrono::seconds(60)); }
  std::string Said() const { return ReadText(log); }

  static inline int runs = 0;
  const fs::path log;
  std::unique_ptr<cli::ChildProcess> child;
};

struct Setup {
  explicit Setup(std::vector<std::string> extra = {}) : sender(root.path()) {
    extra.insert(extra.begin(), {"--engine", "vllm=" + engine.url()});
    receiver = std::make_unique<ReceiverProcess>(root.path(), "r1", sender.control(), kModel,
                                                 std::move(extra));
    trainer = std::make_unique<Trainer>(sender.socket(), kModel, 4, 71);
    (void)receiver->Status();  // answers once the receiver serves: the tool does not wait for one
  }
  void Publish() {
    if (version > 0) trainer->Step();
    REQUIRE(trainer->Publish(++version).status() == absl::OkStatus());
  }
  v1::EngineStatus Engine(int i = 0) {
    const auto status = receiver->Status();
    return i < status.engines_size() ? status.engines(i) : v1::EngineStatus();
  }
  bool Reaches(const std::string& state) {
    return Eventually([&] { return Engine().state() == state; });
  }
  bool Served() {
    return Eventually([&] {
      const auto status = receiver->Status();
      return status.served().epoch() != 0 && status.served().version() == version;
    });
  }
  bool Holds() { return engine.weights() == trainer->content(); }

  ShmDir root;
  EngineStandIn engine{EngineStandIn::Api::kVllm, root.path() / "r1"};
  SenderProcess sender;
  std::unique_ptr<ReceiverProcess> receiver;
  std::unique_ptr<Trainer> trainer;
  uint64_t version = 0;
};

}  // namespace

TEST_CASE("a real receiver brings an engine to each version, call by call") {
  Setup s;
  s.Publish();
  REQUIRE(s.receiver->WaitCommitted(1));
  CHECK(s.Reaches("unreachable"));
  s.engine.Start();
  REQUIRE(s.Served());
  s.engine.TakeCalls();
  for (int i = 0; i < 5; ++i) {
    s.Publish();
    REQUIRE(s.Served());
    CHECK(s.engine.TakeCalls() == kUpdate);
    CHECK(s.Holds());
  }
  CHECK(s.engine.violations().empty());
  const v1::EngineStatus e = s.Engine();
  CHECK(e.kind() == "vllm");
  CHECK("http://" + e.name() == s.engine.url());
  CHECK(e.state() == "serving");
  CHECK(e.updates() == 6);
  CHECK(e.error().empty());
  CHECK_FALSE(e.paused());
  CHECK(e.last_pause_seconds() > 0);
  CHECK(e.served().root() == s.receiver->Status().committed().root());
}

TEST_CASE("verify --engines finds what has drifted in an engine, and it is put right") {
  Setup s;
  s.engine.Start();
  s.Publish();
  REQUIRE(s.Served());
  const auto verify = [&](const char* option) {
    auto tool = std::make_unique<Tool>(
        s.root, std::vector<std::string>{"verify", "--engines", option}, *s.receiver);
    const int code = tool->Wait();
    return std::pair(code, tool->Said());
  };
  auto [code, said] = verify("--json");
  INFO(said);
  CHECK(code == 0);
  const Json good = Json::parse(said);
  CHECK(good["engines"].size() == 1);
  CHECK(good["engines"][0]["error"] == "");
  s.engine.Corrupt(1000);
  std::tie(code, said) = verify("--timeout=30");
  CHECK(code == 4);
  CHECK(said.find("the engine's memory has drifted in ") != std::string::npos);
  REQUIRE(s.Served());
  CHECK(s.Holds());
  std::tie(code, said) = verify("--timeout=30");
  CHECK(code == 0);
  CHECK(said.find(s.Engine().name() + ": all good") != std::string::npos);
  CHECK(s.Engine().drifts() == 1);
  CHECK(s.engine.violations().empty());
}

TEST_CASE("status, watch, wait and metrics tell served from committed") {
  ShmDir hook_root;
  const fs::path hook = hook_root.path() / "hook";
  std::ofstream(hook) << "#!/bin/sh\ntest ! -e " << hook.native() << ".no\n";
  chmod(hook.c_str(), 0755);
  const uint16_t metrics = FreePort();
  Setup s({"--engine", "exec=" + hook.native(), "--engine-failure", "stay-paused",
           "--metrics-listen", fmt::format("127.0.0.1:{}", metrics)});
  s.engine.Start();
  Tool watch(s.root, {"watch", "--json"}, *s.receiver);
  Tool first(s.root, {"wait", "--served", "--version", "1"}, *s.receiver);
  s.Publish();
  CHECK(first.Wait() == 0);
  CHECK(first.Said().find("served by all engines") != std::string::npos);
  // One engine serves version 2, the other does not: committed, and not served.
  std::ofstream(hook.native() + ".no").close();
  s.Publish();
  Tool committed(s.root, {"wait", "--version", "2", "--json"}, *s.receiver);
  CHECK(committed.Wait() == 0);
  CHECK(Json::parse(committed.Said())["event"] == "committed");
  REQUIRE(Eventually([&] { return s.Engine(1).state() == "behind"; }));
  REQUIRE(Eventually([&] { return s.Engine(0).state() == "serving"; }));
  CHECK(s.receiver->Status().served().epoch() == 0);
  Tool never(s.root, {"wait", "--served", "--version", "2", "--timeout", "0.3"}, *s.receiver);
  CHECK(never.Wait() == 1);
  // Each serves version 1 or a later one, though never both the same.
  Tool older(s.root, {"wait", "--served", "--version", "1", "--json"}, *s.receiver);
  CHECK(older.Wait() == 0);
  CHECK(Json::parse(older.Said())["id"]["version"] == 1);
  Tool status(s.root, {"status", "--sender", s.sender.control()}, *s.receiver);
  CHECK(status.Wait() == 0);
  INFO(status.Said());
  CHECK(status.Said().find("behind") != std::string::npos);
  CHECK(status.Said().find("it exited with status 1") != std::string::npos);
  Tool json(s.root, {"status", "--json", "--sender", s.sender.control()}, *s.receiver);
  CHECK(json.Wait() == 0);
  const Json engines = Json::parse(json.Said())["receiver"]["models"][0]["engines"];
  REQUIRE(engines.size() == 2);
  CHECK(engines[0]["served"]["version"] == 2);
  CHECK(engines[1]["served"]["version"] == 1);
  CHECK(engines[1]["kind"] == "exec");
  const std::string scraped = HttpGet(metrics, "/metrics");
  INFO(scraped);
  const std::string labels =
      fmt::format("{{model=\"m\",engine=\"{}\",kind=\"vllm\"}}", s.Engine(0).name());
  CHECK(scraped.find("deltawire_receiver_engine_served_version" + labels + " 2") !=
        std::string::npos);
  CHECK(scraped.find("deltawire_receiver_engine_updates_total" + labels + " 2") !=
        std::string::npos);
  CHECK(scraped.find("deltawire_receiver_engine_failures_total{model=\"m\",engine=\"" +
                     hook.native() + "\",kind=\"exec\"} 1") != std::string::npos);
  // And the next version heals it.
  fs::remove(hook.native() + ".no");
  s.Publish();
  REQUIRE(s.Served());
  const auto seen = [&](const char* event, int version, int engines_that) {
    int n = 0;
    std::istringstream lines(watch.Said());
    for (std::string line; std::getline(lines, line);) {
      const Json e = Json::parse(line, nullptr, false);
      n += e.is_object() && e["event"] == event && e["id"]["version"] == version;
    }
    return n == engines_that;
  };
  CHECK(Eventually([&] { return seen("served", 1, 2) && seen("served", 2, 1); }));
  CHECK(Eventually([&] { return seen("served", 3, 2) && seen("committed", 3, 1); }));
}

TEST_CASE("wait --all --served ends when the engines of all receivers serve a version") {
  ShmDir hook_root;
  const fs::path hook = hook_root.path() / "hook";
  std::ofstream(hook) << "#!/bin/sh\ntest ! -e " << hook.native() << ".no\n";
  chmod(hook.c_str(), 0755);
  Setup s;
  s.engine.Start();
  ReceiverProcess other(s.root.path(), "r2", s.sender.control(), kModel,
                        {"--engine", "exec=" + hook.native(), "--engine-failure", "stay-paused"});
  ReceiverProcess plain(s.root.path(), "r3", s.sender.control(), kModel);
  const auto wait = [&](const char* version, const char* seconds) {
    return Tool(s.root, {"wait", "--all", "--served", "--at-least", "2", "--version", version,
                         "--timeout", seconds, "--json", "--sender", s.sender.control()});
  };
  s.Publish();
  Tool first = wait("1", "60");
  CHECK(first.Wait() == 0);
  INFO(first.Said());
  const Json said = Json::parse(first.Said());
  CHECK(said["event"] == "served by all");
  CHECK(said["receivers"] == 2);  // the third drives no engine
  std::ofstream(hook.native() + ".no").close();
  s.Publish();
  REQUIRE(s.Served());
  REQUIRE(other.WaitCommitted(2));
  Tool never = wait("2", "0.5");
  CHECK(never.Wait() == 1);
  CHECK(never.Said().find("the engines of 1 of 2 attached receivers that drive any serve version "
                          "2; behind: r2") != std::string::npos);
  Tool status(s.root, {"status", "--json", "--sender", s.sender.control()}, *s.receiver);
  CHECK(status.Wait() == 0);
  const Json seen = Json::parse(status.Said());
  std::map<std::string, std::pair<int, int>> engines;
  for (const Json& r : seen["sender"]["receivers"]) {
    engines[r["receiver_id"]] = {r["engines"], r["served"]["version"]};
  }
  CHECK(engines ==
        std::map<std::string, std::pair<int, int>>{{"r1", {1, 2}}, {"r2", {1, 1}}, {"r3", {0, 0}}});
  fs::remove(hook.native() + ".no");
  s.Publish();
  CHECK(wait("3", "60").Wait() == 0);
}

TEST_CASE("a receiver killed in the middle of an update: the next one brings the engine on") {
  // Before and after the engine did what it was asked.
  const auto fault = GENERATE(Fault::Kind::kHang, Fault::Kind::kCutDone);
  const std::string path =
      GENERATE(as<std::string>{}, "prepare", "/pause", "apply", "/reset_prefix_cache",
               "/reset_encoder_cache", "prove", "/update_weight_version", "/resume");
  CAPTURE(static_cast<int>(fault), path);
  Setup s;
  s.engine.Start();
  s.Publish();
  REQUIRE(s.Served());
  s.engine.TakeCalls();
  s.engine.Set(path, {.kind = fault, .times = 1});
  s.Publish();
  REQUIRE(Eventually([&] { return s.engine.Called(path); }));
  s.receiver->Restart();  // SIGKILL
  REQUIRE(s.Served());
  CHECK(s.Holds());
  CHECK_FALSE(s.engine.paused());
  CHECK(s.engine.weight_version() == "2");
  CHECK(s.engine.violations().empty());
}

TEST_CASE("SIGTERM ends a receiver in time, whatever its engine does") {
  Setup s;
  s.engine.Start();
  s.Publish();
  REQUIRE(s.Served());
  s.engine.TakeCalls();
  s.engine.Set("apply", {.kind = Fault::Kind::kHang});
  s.Publish();
  REQUIRE(Eventually([&] { return s.engine.Called("apply"); }));
  s.receiver->child().Signal(SIGTERM);
  CHECK(s.receiver->child().Wait(std::chrono::milliseconds(3000)) == 0);
}

}  // namespace deltawire::testing::engine_test
