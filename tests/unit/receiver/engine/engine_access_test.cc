// Engines that want a key, and engines behind TLS: what is shown, to whom, and what is not.
#include "receiver/engine/engine_access.h"

#include "receiver/engine/engine_hook.h"
#include "tests/support/certificates.h"
#include "tests/unit/receiver/engine/engine_rig.h"

namespace deltawire::receiver::engine_access_test {
namespace {

using std::chrono::milliseconds;
using testing::EngineStandIn;
using testing::Made;
using testing::WriteFile;
using Result = EngineAnswer::Result;

const std::string kKey = "a-key-of-the-engine's", kNewKey = "another";

/// A certificate for these names by this authority, spoken by the stand-in from its next start on.
void SpeakTls(EngineStandIn& engine, const security::IssuedCertificate& authority,
              const std::vector<std::string>& hosts) {
  const auto made = Made(security::Issue(authority, "engine", hosts, std::chrono::days(1)));
  engine.SpeakTls(made.certificate, made.key);
}

EngineAnswer Probe(const EngineStandIn& engine, const std::string& words,
                   const std::string& scheme_and_host = "") {
  std::string url = engine.url();
  if (!scheme_and_host.empty()) url = scheme_and_host + url.substr(url.rfind(':'));
  const EngineOptions options = Made(ParseEngine(fmt::format("vllm={} {}", url, words)));
  auto hook = MakeHook(options, {"m", "/m"}, Made(EngineAccess::Load(options)));
  const EngineAnswer awake = hook->AskSleep(/*slept=*/false, milliseconds(10000));
  return awake.done() ? hook->Make(EngineCall::kProbe, {}, milliseconds(10000)) : awake;
}

}  // namespace

TEST_CASE("engines behind TLS that want a key are followed, also when the key changes") {
  EngineRig rig;
  const auto ca = Made(security::MakeAuthority("test", std::chrono::days(1)));
  const std::string key_file = rig.dir.path() / "key", ca_file = rig.dir.path() / "ca.pem";
  WriteFile(key_file, kKey + "\n");
  WriteFile(ca_file, ca.certificate);
  for (const EngineKind kind : {EngineKind::kVllm, EngineKind::kSglang}) {
    auto& engine = *rig.stand_ins.emplace_back(std::make_unique<EngineStandIn>(
        kind == EngineKind::kVllm ? EngineStandIn::Api::kVllm : EngineStandIn::Api::kSglang,
        rig.dir.path() / "m"));
    SpeakTls(engine, ca, {"127.0.0.1"});
    engine.WantKey(kKey);
    engine.Start();
    rig.Add(Made(ParseEngine(fmt::format("{}={} token_file={} ca_file={}", ToString(kind),
                                         engine.url(), key_file, ca_file))));
  }
  rig.Follow();
  rig.Publish();
  for (const size_t i : {0, 1}) {
    CHECK(rig.Served(i));
    CHECK(rig.Holds(*rig.stand_ins[i]));
    CHECK(rig.stand_ins[i]->violations().empty());
  }

  // The old key is refused in words that say what to do, and that do not hold it.
  for (const auto& engine : rig.stand_ins) engine->WantKey(kNewKey);
  rig.Publish();
  for (const size_t i : {0, 1}) {
    CHECK(testing::Eventually([&] {
      return rig.view(i).error.find(
                 "401: Unauthorized (it does not take the key in the file of "
                 "token_file=)") != std::string::npos;
    }));
    CHECK(rig.view(i).error.find(kKey) == std::string::npos);
  }
  WriteFile(key_file, kNewKey + "\n");
  for (const auto& one : rig.all) CHECK(one.access->Reload().ok());
  rig.Publish();
  for (const size_t i : {0, 1}) {
    CHECK(rig.Served(i));
    CHECK(rig.Holds(*rig.stand_ins[i]));
  }
}

TEST_CASE("nothing is sent to an engine whose certificate is another's, or by nobody known") {
  const TempDir dir;
  const auto ca = Made(security::MakeAuthority("test", std::chrono::days(1)));
  const auto other = Made(security::MakeAuthority("other", std::chrono::days(1)));
  WriteFile(dir.path() / "ca.pem", ca.certificate);
  WriteFile(dir.path() / "other.pem", other.certificate);
  const std::string by_ca = "ca_file=" + (dir.path() / "ca.pem").native();
  EngineStandIn engine(EngineStandIn::Api::kVllm, dir.path() / "m");
  SpeakTls(engine, ca, {"localhost"});
  engine.Start();

  CHECK(Probe(engine, by_ca, "https://localhost").done());
  const auto refused = [&](const EngineAnswer& answer, const std::string& why) {
    CAPTURE(answer.why, why);
    CHECK(answer.result == Result::kUnreachable);
    CHECK(answer.why.find(why) != std::string::npos);
  };
  refused(Probe(engine, by_ca), "TLS: the certificate of 127.0.0.1 is not believed: IP address");
  const std::string by_other = "ca_file=" + (dir.path() / "other.pem").native();
  refused(Probe(engine, by_other, "https://localhost"),
          "the certificate of localhost is not believed: unable to get local issuer certificate");
  // The system's authorities have not heard of it either.
  refused(Probe(engine, "", "https://localhost"), "the certificate of localhost is not believed");
  engine.Stop();

  // A server without TLS, and TLS with a server that is asked without it.
  EngineStandIn plain(EngineStandIn::Api::kVllm, dir.path() / "m");
  plain.Start();
  refused(Probe(plain, by_ca, "https://127.0.0.1"), "TLS: ");
  engine.Start();
  CHECK(Probe(engine, "", "http://localhost").result == Result::kUnsure);
  CHECK(engine.TakeCalls().empty());
}

TEST_CASE("a key is asked for by a hint, and what an engine says of it is not repeated") {
  const TempDir dir;
  WriteFile(dir.path() / "key", kKey);
  const std::string word = "token_file=" + (dir.path() / "key").native();
  EngineStandIn engine(EngineStandIn::Api::kVllm, dir.path() / "m");
  engine.Start();
  engine.WantKey(kNewKey);
  CHECK(Probe(engine, "").why ==
        "it does not say whether it sleeps: /is_sleeping: 401: Unauthorized (it wants an API key: "
        "token_file= after its URL names the file)");
  CHECK(Probe(engine, word).result == Result::kUnsure);
  engine.WantKey(kKey);
  CHECK(Probe(engine, word).done());
  engine.Set("/weight_info", {.code = 403, .body = R"({"error": "no ")" + kKey + R"( here"})"});
  CHECK(Probe(engine, word).why.find(kKey) == std::string::npos);
  engine.Set("/weight_info", {.code = 500, .body = R"({"error": "bad key )" + kKey + R"( here"})"});
  CHECK(Probe(engine, word).why == "500: bad key [key] here");
}

TEST_CASE("files of keys and authorities that cannot be used are named, and not what they hold") {
  const TempDir dir;
  const std::string key = dir.path() / "key", ca = dir.path() / "ca.pem";
  const auto refusal = [](const std::string& words) {
    const auto access = EngineAccess::Load(Made(ParseEngine("vllm=https://a:1 " + words)));
    REQUIRE_FALSE(access.ok());
    return std::string(MessageOf(access.status()));
  };
  CHECK(refusal("token_file=" + key).find(key) != std::string::npos);
  WriteFile(key, "secret", 0644);
  CHECK(refusal("token_file=" + key).find("its mode 0644 lets every user") != std::string::npos);
  for (const char* text : {"", "two words", "one\ntwo\n", "sec\x01ret"}) {
    WriteFile(key, text);
    CHECK(refusal("token_file=" + key) ==
          "engine a:1: " + key + " is not one line of 1 to 4096 visible ASCII characters");
  }
  WriteFile(ca, "no certificate");
  CHECK(refusal("ca_file=" + ca) == "engine a:1: " + ca + " holds no certificate in PEM");
}

}  // namespace deltawire::receiver::engine_access_test
