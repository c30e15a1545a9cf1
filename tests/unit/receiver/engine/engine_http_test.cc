// What goes over the wire to an engine, and how its answers are judged.
#include <netdb.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/base/unique_fd.h"
#include "receiver/engine/engine_hook.h"
#include "receiver/engine/foreign_text.h"
#include "receiver/engine/http_client.h"
#include "receiver/engine/plugin_call.h"
#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/tcp.h"
#include "tests/support/temp_dir.h"

namespace {

/// A name server that does not answer until it is told to.
struct Resolver {
  void Answer() {
    std::lock_guard lock(mu);
    answers = true;
    cv.notify_all();
  }
  int asked() {
    std::lock_guard lock(mu);
    return asked_;
  }
  void Wait() {
    std::unique_lock lock(mu);
    ++asked_;
    cv.wait(lock, [this] { return answers; });
  }

  std::mutex mu;
  std::condition_variable cv;
  bool answers = false;
  int asked_ = 0;
};
Resolver& SlowResolver() {
  static auto* const resolver = new Resolver;  // outlives the threads that ask it
  return *resolver;
}

}  // namespace

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names (CMakeLists.txt)
int __real_getaddrinfo(const char*, const char*, const addrinfo*, addrinfo**);
int __wrap_getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                       addrinfo** found) {
  if (node == nullptr || std::string_view(node) != "slow.test") {
    return __real_getaddrinfo(node, service, hints, found);
  }
  SlowResolver().Wait();
  return __real_getaddrinfo("127.0.0.1", service, hints, found);
}
// NOLINTEND(bugprone-reserved-identifier)
}

namespace deltawire::receiver::engine_http_test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Result = EngineAnswer::Result;
using Json = nlohmann::json;

const Identity kSeven{Hash128{1, 2}, {3, 7}, 0xabc, 5};

/// A server that has no /is_sleeping; else it takes a request, and answers with these bytes; "":
/// one connection, and no answer until the other end closes. `before`: called before each answer.
class OneAnswer {
 public:
  explicit OneAnswer(
      std::string answer, std::function<void()> before = [] {})
      : before_(std::move(before)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    testing::Listen(listener_.get(), "127.0.0.1", 0);
    sockaddr_in at{};
    socklen_t size = sizeof at;
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at), &size);
    port_ = ntohs(at.sin_port);
    thread_ = std::thread([this, answer = std::move(answer)] { Serve(answer); });
  }
  ~OneAnswer() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  EngineOptions Engine(const std::string& kind, const std::string& path = "",
                       const std::string& host = "127.0.0.1") const {
    return *ParseEngine(fmt::format("{}=http://{}:{}{}", kind, host, port_, path));
  }
  /// Returns when a request has come whole.
  void AwaitRequest() { asked_.get_future().wait(); }
  /// The first request, once all were answered.
  std::string Request() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    thread_ = std::thread([] {});
    return request_;
  }

 private:
  void Serve(const std::string& answer) {
    for (int served = 0;; ++served) {
      const UniqueFd peer(accept(listener_.get(), nullptr, nullptr));
      if (peer.get() < 0) return;
      const std::string request = Receive(peer.get());
      if (request.find("/is_sleeping HTTP") != std::string::npos) {
        const std::string none = "HTTP/1.1 404 X\r\nContent-Length: 2\r\n\r\n{}";
        send(peer.get(), none.data(), none.size(), MSG_NOSIGNAL);
        --served;
        continue;
      }
      if (served == 0) {
        request_ = request;
        asked_.set_value();
      }
      if (answer.empty()) {
        char buffer[4096];
        while (recv(peer.get(), buffer, sizeof buffer, 0) > 0) {
        }
        return;
      }
      before_();
      send(peer.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }
  static std::string Receive(int peer) {
    std::string request;
    char buffer[4096];
    const auto body_is_whole = [&request] {
      const size_t head = request.find("\r\n\r\n");
      const size_t length = request.find("Content-Length: ");
      if (head == std::string::npos) return false;
      return length == std::string::npos ||
             request.size() - head - 4 >= std::stoul(request.substr(length + 16));
    };
    for (ssize_t n; !body_is_whole() && (n = recv(peer, buffer, sizeof buffer, 0)) > 0;) {
      request.append(buffer, static_cast<size_t>(n));
    }
    return request;
  }

  const std::function<void()> before_;
  const UniqueFd listener_;
  uint16_t port_ = 0;
  std::promise<void> asked_;
  std::string request_;
  std::thread thread_;
};

std::string Http(int code, const std::string& body) {
  return fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\n\r\n{}", code, body.size(), body);
}

struct Made {
  EngineAnswer answer;
  std::string line;  // the request's first
  Json body;         // null: none
};

Made Make(const std::string& kind, EngineCall call, const std::string& answer,
          const std::string& path = "") {
  OneAnswer server(answer);
  auto hook = MakeHook(server.Engine(kind, path), {"policy", "/dev/shm/m"});
  Made made;
  made.answer = hook->Make(call, kSeven, milliseconds(5000));
  const std::string request = server.Request();
  made.line = request.substr(0, request.find("\r\n"));
  const std::string body = request.substr(request.find("\r\n\r\n") + 4);
  if (!body.empty()) made.body = Json::parse(body);
  return made;
}

}  // namespace

TEST_CASE("a vLLM without names for its weights is reloaded all the same") {
  const std::string page = R"({"detail": "Not Found"})";
  const EngineAnswer probed = Make("vllm-reload", EngineCall::kProbe, Http(404, page)).answer;
  CHECK(probed.done());
  CHECK(probed.version.empty());
  CHECK(Make("vllm-reload", EngineCall::kName, Http(404, page)).answer.done());
  // The plug-in wants a vLLM that has them, so a gateway keeps the page back.
  CHECK_FALSE(Make("vllm", EngineCall::kName, Http(404, page)).answer.done());
  CHECK_FALSE(Make("vllm-reload", EngineCall::kResume, Http(404, page)).answer.done());
}

TEST_CASE("each call is the request that the engine's own sources ask for") {
  struct Row {
    const char* kind;
    EngineCall call;
    std::string line;
    Json body;
    std::string good;  // an answer that means yes
  };
  const std::string any = "{}";
  const Json reload = {
      {"method", "reload_weights"},
      {"kwargs", {{"weights_path", "/dev/shm/m"}, {"is_checkpoint_format", true}}}};
  const std::string nulls = R"({"results": [null, null]})";
  const auto disk = [](const std::string& path) -> Json {
    return {{"model_path", path}, {"weight_version", "7"}, {"flush_cache", true}};
  };
  const std::string paused = R"({"status": "paused"})", resumed = R"({"status": "resumed"})";
  const std::string yes = R"({"success": true})", ok = R"({"status": "ok"})";
  const std::vector<Row> rows = {
      {"vllm", EngineCall::kProbe, "GET /weight_info", nullptr, any},
      {"vllm", EngineCall::kPause, "POST /pause?mode=keep", nullptr, paused},
      {"vllm", EngineCall::kFlush,
       "POST /reset_prefix_cache?reset_running_requests=true&reset_external=true", nullptr, yes},
      {"vllm", EngineCall::kName, "POST /update_weight_version", {{"new_version", "7"}}, yes},
      {"vllm", EngineCall::kResume, "POST /resume", nullptr, resumed},
      {"sglang",
       EngineCall::kCheck,
       "POST /weights_checker",
       {{"action", "deltawire:/dev/shm/m?version=7&root=0000000000000abc&check"}},
       yes},
      {"vllm-reload", EngineCall::kLoad, "POST /collective_rpc", reload, nulls},
      {"sglang", EngineCall::kProbe, "GET /model_info", nullptr, any},
      {"sglang",
       EngineCall::kPrepare,
       "POST /weights_checker",
       {{"action", "deltawire:/dev/shm/m?version=7&root=0000000000000abc&prepare"}},
       yes},
      {"sglang", EngineCall::kPause, "POST /pause_generation", {{"mode", "retract"}}, ok},
      {"sglang", EngineCall::kReload, "POST /update_weights_from_disk", disk("/dev/shm/m"), yes},
      {"sglang", EngineCall::kLoad, "POST /update_weights_from_disk",
       disk("deltawire:/dev/shm/m?version=7&root=0000000000000abc"), yes},
      {"sglang", EngineCall::kRollback, "POST /update_weights_from_disk",
       disk("deltawire:/dev/shm/m?version=7&root=0000000000000abc&rollback"), yes},
      {"sglang",
       EngineCall::kResume,
       "POST /continue_generation",
       {{"torch_empty_cache", false}},
       ok},
      {"sglang-reload", EngineCall::kLoad, "POST /update_weights_from_disk", disk("/dev/shm/m"),
       yes},
      {"http",
       EngineCall::kLoad,
       "POST /",
       {{"model", "policy"},
        {"directory", "/dev/shm/m"},
        {"version", 7},
        {"epoch", 3},
        {"lineage", Hash128{1, 2}.Hex()},
        {"root", "0000000000000abc"}},
       ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.kind, ToString(row.call));
    const Made made = Make(row.kind, row.call, Http(200, row.good));
    CHECK(made.line == row.line + " HTTP/1.1");
    CHECK(made.body == row.body);
    CAPTURE(made.answer.why);
    CHECK(made.answer.done());
    // Yes to every call that must say more than 200.
    if (row.good == any || row.good.empty()) continue;
    for (const char* no : {"{}", R"({"success": false, "status": "no"})", "[]", "nothing"}) {
      CAPTURE(no);
      CHECK_FALSE(Make(row.kind, row.call, Http(200, no)).answer.done());
    }
  }
}

TEST_CASE("a plug-in is told how to attach by the words after its engine's URL") {
  const EngineOptions options =
      *ParseEngine("vllm=http://a:1 loader_tensors second_instance plans");
  CHECK(Json(PluginBody(EngineCall::kAttach, kSeven, options, {"m", "/dev/shm/m"}, "abc", 1)) ==
        Json{{"method", "deltawire_call"},
             {"kwargs",
              {{"call", "attach"},
               {"nonce", "abc"},
               {"directory", "/dev/shm/m"},
               {"loader_tensors", true},
               {"second_instance", true},
               {"plans", true}}}});
  const std::string yes = R"({"success": true})", words = "/x plans loader_tensors";
  const std::string order = "deltawire:/dev/shm/m?version=7&root=0000000000000abc";
  CHECK(Make("sglang", EngineCall::kPrepare, Http(200, yes), words).body["action"] ==
        order + "&prepare&loader_tensors&plans");
  CHECK(Make("sglang", EngineCall::kLoad, Http(200, yes), words).body["model_path"] ==
        order + "&loader_tensors&plans");
  CHECK(Make("sglang", EngineCall::kRollback, Http(200, yes), words).body["model_path"] ==
        order + "&rollback");
}

TEST_CASE("an engine is paused as its option says, and what stays in its place is not flushed") {
  const std::string yes = R"({"success": true})", ok = R"({"status": "ok"})";
  CHECK(Make("vllm-reload", EngineCall::kPause, Http(200, R"({"status": "paused"})"), " pause=wait")
            .line == "POST /pause?mode=wait HTTP/1.1");
  CHECK(Make("sglang", EngineCall::kPause, Http(200, ok), " pause=abort").body["mode"] == "abort");
  for (const auto& [mode, flushed] : {std::pair{"abort", true}, std::pair{"in_place", false}}) {
    const Made load =
        Make("sglang", EngineCall::kLoad, Http(200, yes), fmt::format(" pause={}", mode));
    CHECK(load.answer.done());
    CHECK(load.body["flush_cache"] == flushed);
  }
}

TEST_CASE("a path in front of an engine's is kept, and so is a hook's own path") {
  CHECK(Make("vllm", EngineCall::kResume, Http(200, "{}"), "/replica-3/").line ==
        "POST /replica-3/resume HTTP/1.1");
  CHECK(Make("http", EngineCall::kLoad, Http(204, ""), "/hooks/weights?a=1").line ==
        "POST /hooks/weights?a=1 HTTP/1.1");
}

TEST_CASE("a probe tells the version that the engine names") {
  const auto probe = [](const std::string& body) {
    return Make("vllm", EngineCall::kProbe, Http(200, body)).answer;
  };
  CHECK(probe(R"({"weight_version": "default"})").version == "default");
  CHECK(probe(R"({"weight_version": null})").version.empty());
  CHECK(probe("{}").version.empty());
}

TEST_CASE("refusals have the engine's words") {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"error": {"message": "deltawire: no version", "code": 500}})", "deltawire: no version"},
      {R"({"error": "Failed to pause"})", "Failed to pause"},
      {R"({"success": false, "message": "no\nroom"})", "no room"},
      {R"({"detail": [{"msg": "Field required"}]})", "Field required"},
      {"Internal Server Error", "Internal Server Error"}};
  for (const auto& [body, words] : cases) {
    const EngineAnswer answer = Make("vllm-reload", EngineCall::kLoad, Http(500, body)).answer;
    CAPTURE(answer.why);
    CHECK(answer.result == Result::kRefused);
    CHECK(answer.why.starts_with("500: "));
    CHECK(answer.why.find(words) != std::string::npos);
  }
  const std::string longer(100000, 'x');
  CHECK(Make("http", EngineCall::kLoad, Http(404, longer)).answer.why.size() < 600);
}

TEST_CASE("neither the key that an engine was shown nor the one since is in what it said") {
  const TempDir dir;
  const std::string file = dir.path() / "key";
  const std::string keys[] = {"the-first", "the-first-and-more"};  // one is a part of the other
  const bool grows = GENERATE(true, false);
  const std::string& shown = keys[grows ? 0 : 1];
  const std::string& since = keys[grows ? 1 : 0];
  testing::WriteFile(file, shown);
  std::shared_ptr<EngineAccess> access;
  Status rotated = absl::UnknownError("not asked");
  const auto rotates = [&] {
    testing::WriteFile(file, since);
    rotated = access->Reload();
  };
  OneAnswer server(Http(403, fmt::format("{} is not {}", shown, since)), rotates);
  const EngineOptions options = server.Engine("vllm-reload", " token_file=" + file);
  access = testing::Made(EngineAccess::Load(options));
  const auto hook = MakeHook(options, {"m", "/m"}, access);
  CHECK(hook->Make(EngineCall::kLoad, kSeven, milliseconds(5000)).why ==
        "403: [key] is not [key] (it does not take the key in the file of token_file=)");
  CHECK(server.Request().find("Bearer " + shown + "\r\n") != std::string::npos);
  CHECK(rotated == absl::OkStatus());
}

TEST_CASE("a refusal for drift is told from others by the plug-ins' words") {
  const auto answer = [](const char* body) {
    return Make("sglang", EngineCall::kPrepare, Http(500, body)).answer;
  };
  CHECK(answer(R"({"error": {"message": "deltawire: rank 1: the engine's memory has drifted in )"
               R"(norm; the next update takes"}})")
            .drifted);
  CHECK_FALSE(answer(R"({"error": {"message": "deltawire: no version"}})").drifted);
}

TEST_CASE("the word of an engine's ranks is theirs, whole, and to this call, or none") {
  const auto rank = [](int n, const std::string& nonce = "n1") {
    return Json{{"nonce", nonce}, {"rank", n},      {"ranks", 2},   {"replicas", 1},
                {"engine", "e"},  {"ok", true},     {"reason", ""}, {"drifted", false},
                {"anew", false},  {"held", nullptr}};
  };
  const auto read = [](const Json& results) {
    return ReadPluginWord(nlohmann::ordered_json::parse(results.dump()), "n1");
  };
  Json first = rank(0), second = rank(1);
  CHECK(read({first, second})->ok);
  CHECK_FALSE(read({first}));                 // one is missing
  CHECK_FALSE(read({second, first}));         // in another order
  CHECK_FALSE(read({first, rank(1, "n0")}));  // of an earlier call
  CHECK_FALSE(read({first, nullptr}));        // of somebody else's
  CHECK_FALSE(read({"version 2 of mine", nullptr}));
  CHECK_FALSE(read({first, second, rank(2)}));
  CHECK_FALSE(read(Json::array()));
  CHECK_FALSE(read(nullptr));
  first["held"] = second["held"] = {
      {"version", 7}, {"epoch", 3}, {"lineage", Hash128{1, 2}.Hex()}, {"root", "0000000000000abc"}};
  CHECK(read({first, second})->held == kSeven);
  second["held"]["root"] = "0000000000000abd";
  CHECK(read({first, second})->held == Identity{});
  for (const Json& odd : {Json(1), Json("x"), Json::object(), Json{{"root", 7}}}) {
    first["held"] = second["held"] = odd;
    CHECK(read({first, second})->held == Identity{});
  }
  second["ok"] = false;
  second["reason"] = "no room";
  second["drifted"] = true;
  const auto no = read({first, second});
  CHECK_FALSE(no->ok);
  CHECK(no->reason == "no room");
  CHECK(no->drifted);
}

TEST_CASE("a plug-in is told whose directory the update is in") {
  const Json kwargs = PluginBody(EngineCall::kPrepare, kSeven, *ParseEngine("vllm=http://a:1"),
                                 {"m", "/m"}, "abc", 1)["kwargs"];
  CHECK(kwargs == Json{{"call", "prepare"}, {"nonce", "abc"}, {"directory", "/m"}, {"version", 7}});
}

TEST_CASE("a proof names the version's number and root") {
  const EngineOptions options = *ParseEngine("vllm=http://a:1");
  for (const EngineCall call : {EngineCall::kSample, EngineCall::kProve}) {
    const Json kwargs = PluginBody(call, kSeven, options, {"m", "/m"}, "abc", 2)["kwargs"];
    CHECK(kwargs == Json{{"call", "prove"},
                         {"nonce", "abc"},
                         {"version", 7},
                         {"epoch", 3},
                         {"lineage", Hash128{1, 2}.Hex()},
                         {"root", "0000000000000abc"},
                         {"part", call == EngineCall::kProve ? "all" : "next"},
                         {"replicas", 2}});
  }
}

TEST_CASE("replies to a plain reload that are another call's are no yes") {
  const auto load = [](const std::string& body) {
    return Make("vllm-reload", EngineCall::kLoad, Http(200, body)).answer;
  };
  CHECK(load(R"({"results": [null, null]})").done());
  for (const char* stale :
       {R"({"results": ["version 2", null]})", R"({"results": [null, true]})"}) {
    CHECK(load(stale).result == Result::kUnsure);
    CHECK(load(stale).out_of_step);
  }
  CHECK_FALSE(load("{}").done());
  CHECK_FALSE(load(R"({"results": []})").done());
}

TEST_CASE("no text of an engine's forges a line, shows a key, or is longer than it may be") {
  const std::string key = "se\"cr\\et";
  CHECK(QuoteForeign("a\n[error] b\x1b[0m\x80", {}) == "a [error] b [0m ");
  CHECK(QuoteForeign("x " + key + " y", {key}) == "x [key] y");
  CHECK(QuoteForeign(Json(key).dump(), {key}) == "\"[key]\"");
  CHECK(QuoteForeign(std::string(1000, 'x'), {}, 64).size() == 64);
  // A key at the place of the cut is not shown in part.
  CHECK(QuoteForeign(std::string(60, 'x') + key, {key}, 64) == std::string(60, 'x') + "[key");
  const TempDir dir;
  const std::string file = dir.path() / "key";
  testing::WriteFile(file, "the-key");
  OneAnswer server(Http(200, R"({"weight_version": "the-key\n[error] forged" })"));
  const EngineOptions options = server.Engine("sglang", " token_file=" + file);
  const auto hook = MakeHook(options, {"m", "/m"}, testing::Made(EngineAccess::Load(options)));
  CHECK(hook->Make(EngineCall::kProbe, kSeven, milliseconds(5000)).version ==
        "[key] [error] forged");
}

TEST_CASE("after a gateway's answer for an engine, it is unknown what the engine did") {
  for (const int code : {502, 503, 504}) {
    CAPTURE(code);
    for (const char* kind : {"vllm-reload", "sglang-reload", "http"}) {
      const EngineAnswer answer = Make(kind, EngineCall::kLoad, Http(code, "Bad Gateway")).answer;
      CHECK(answer.result == Result::kUnsure);
      CHECK(answer.why == fmt::format("{}: Bad Gateway", code));
    }
  }
}

TEST_CASE("an answer may be nested as deeply as it likes") {
  const std::string deep = std::string(400'000, '[') + std::string(400'000, ']');
  for (const std::string& body :
       {R"({"detail": )" + deep + "}", R"({"error": {"message": )" + deep + "}}", deep}) {
    const EngineAnswer refused = Make("vllm", EngineCall::kPause, Http(400, body)).answer;
    CHECK(refused.result == Result::kRefused);
    CHECK(refused.why.size() < 600);
    CHECK_FALSE(Make("vllm", EngineCall::kPause, Http(200, body)).answer.done());
  }
  const EngineAnswer status =
      Make("vllm", EngineCall::kPause, Http(200, R"({"status": )" + deep + "}")).answer;
  CHECK(status.result == Result::kRefused);
}

TEST_CASE("after an answer that cannot be understood, it is unknown what the engine did") {
  const std::string cases[] = {"garbage that is no HTTP\r\n\r\n",
                               "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut short",
                               Http(200, std::string(2 << 20, 'x')), Http(200, "<html></html>")};
  for (const std::string& bytes : cases) {
    const EngineAnswer answer = Make("vllm-reload", EngineCall::kLoad, bytes).answer;
    CAPTURE(answer.why);
    CHECK(answer.result == Result::kUnsure);
    CHECK_FALSE(answer.why.empty());
  }
}

TEST_CASE("an engine that is not there was not asked") {
  uint16_t port = 0;
  {
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM, 0));
    testing::Listen(listener.get(), "127.0.0.1", 0);
    sockaddr_in at{};
    socklen_t size = sizeof at;
    getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size);
    port = ntohs(at.sin_port);
  }
  auto hook = MakeHook(*ParseEngine(fmt::format("vllm=http://127.0.0.1:{}", port)), {"m", "/m"});
  const EngineAnswer answer = hook->Make(EngineCall::kPause, kSeven, milliseconds(5000));
  CHECK(answer.result == Result::kUnreachable);
  CHECK(answer.why.find("refused") != std::string::npos);
}

TEST_CASE("an engine that never answers is left at the limit, and at once when cancelled") {
  OneAnswer silent("");
  auto hook = MakeHook(silent.Engine("vllm-reload"), {"m", "/m"});
  auto begin = Clock::now();
  EngineAnswer answer = hook->Make(EngineCall::kLoad, kSeven, milliseconds(200));
  CHECK(answer.result == Result::kUnsure);
  CHECK(answer.why.find("nothing within 200 ms") != std::string::npos);
  CHECK(Clock::now() - begin >= milliseconds(190));

  OneAnswer other("");
  hook = MakeHook(other.Engine("vllm-reload"), {"m", "/m"});
  begin = Clock::now();
  std::thread cancels([&] {
    other.AwaitRequest();
    hook->Cancel();
  });
  answer = hook->Make(EngineCall::kLoad, kSeven, milliseconds(60000));
  cancels.join();
  CHECK_FALSE(answer.done());
  CHECK(Clock::now() - begin < milliseconds(30000));
  begin = Clock::now();
  CHECK_FALSE(hook->Make(EngineCall::kLoad, kSeven, milliseconds(60000)).done());
  CHECK(Clock::now() - begin < milliseconds(30000));
}

TEST_CASE("a hook that was cancelled asks nobody, and does not say that nobody was there") {
  OneAnswer silent("");
  auto hook = MakeHook(silent.Engine("vllm-reload"), {"m", "/m"});
  hook->Cancel();
  const EngineAnswer answer = hook->Make(EngineCall::kLoad, kSeven, milliseconds(60000));
  CHECK(answer.result == Result::kUnsure);
  CHECK(answer.why == "the receiver is stopping");
}

TEST_CASE("a name that nobody resolves takes no longer than the limit, and can be cancelled") {
  OneAnswer server(Http(200, "{}"));
  auto hook = MakeHook(server.Engine("http", "", "slow.test"), {"m", "/m"});
  auto begin = Clock::now();
  EngineAnswer answer = hook->Make(EngineCall::kPause, kSeven, milliseconds(100));
  CHECK(answer.result == Result::kUnreachable);
  CHECK(answer.why == "resolve: nothing within 100 ms");
  CHECK(Clock::now() - begin < milliseconds(30000));
  // The search goes on, and the next request takes what it finds.
  CHECK(hook->Make(EngineCall::kPause, kSeven, milliseconds(10)).result == Result::kUnreachable);
  CHECK(SlowResolver().asked() == 1);

  auto cancelled = MakeHook(server.Engine("http", "", "slow.test"), {"m", "/m"});
  begin = Clock::now();
  std::thread cancels([&] {
    testing::Eventually([] { return SlowResolver().asked() == 2; });
    cancelled->Cancel();
  });
  CHECK(cancelled->Make(EngineCall::kPause, kSeven, milliseconds(60000)).result == Result::kUnsure);
  cancels.join();
  cancelled.reset();  // the search outlives it
  CHECK(Clock::now() - begin < milliseconds(30000));

  SlowResolver().Answer();
  answer = hook->Make(EngineCall::kPause, kSeven, milliseconds(10000));
  CAPTURE(answer.why);
  CHECK(answer.done());
  CHECK(server.Request().find("Host: slow.test:") != std::string::npos);
}

}  // namespace deltawire::receiver::engine_http_test
