#include "tests/support/engine_stand_in.h"

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "common/layout/model_dir.h"
#include "receiver/engine_client/engine_weights.h"

namespace deltawire::testing {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace fs = std::filesystem;
using tcp = asio::ip::tcp;
using Json = nlohmann::json;
using Kind = EngineStandIn::Fault::Kind;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr int kRunningRequests = 2;
constexpr std::string_view kScheme = "deltawire:";

struct Answer {
  int code = 200;
  Json body = Json::object();
};

Answer VllmError(int code, std::string_view message) {
  return {code,
          {{"error", {{"message", message}, {"type", ""}, {"param", nullptr}, {"code", code}}}}};
}

/// FastAPI's answer to a body or query that its model refuses.
Answer Unprocessable(std::string_view what) {
  return {422, {{"detail", Json::array({{{"type", "missing"}, {"msg", what}}})}}};
}

Answer Sglang(bool success, std::string_view message) {
  return {success ? 200 : 400, {{"success", success}, {"message", message}}};
}

struct Target {
  std::string path;
  std::map<std::string, std::string> query;
};

/// "/pause?mode=keep&x" as path and options.
Target ParseTarget(const std::string& text) {
  Target target;
  const size_t mark = text.find('?');
  target.path = text.substr(0, mark);
  size_t at = mark;
  while (at < text.size()) {
    const size_t next = std::min(text.find('&', at + 1), text.size());
    const std::string option = text.substr(at + 1, next - at - 1);
    const size_t equals = std::min(option.find('='), option.size());
    target.query[option.substr(0, equals)] = option.substr(std::min(equals + 1, option.size()));
    at = next;
  }
  return target;
}

/// A model's weights in memory, followed by the real engine client.
class Weights {
 public:
  explicit Weights(fs::path directory) : directory_(std::move(directory)) {}

  void Forget() {
    client_.reset();
    memory_.clear();
    whole_ = false;
  }
  /// Reads all of the directory. `halfway` is called in the middle, with the files open.
  Status Load(const std::function<void()>& halfway) {
    whole_ = false;
    DW_ASSIGN_OR_RETURN(const ModelDir model, ModelDir::Open(directory_));
    const Layout& layout = model.layout();
    if (memory_.size() != layout.size()) {
      client_.reset();
      memory_.clear();
      for (size_t t = 0; t < layout.size(); ++t) memory_.emplace_back(layout.bytes(t));
    }
    for (size_t t = 0; t < layout.size(); ++t) {
      if (t == layout.size() / 2) halfway();
      if (memory_[t].size() != layout.bytes(t)) return absl::InvalidArgumentError("another model");
      std::copy(model.data(t).begin(), model.data(t).end(), memory_[t].begin());
    }
    whole_ = true;
    return {};
  }
  /// As a loader that dies in the middle.
  void Tear() {
    whole_ = false;
    for (size_t t = 0; t < memory_.size() / 2; ++t) {
      std::fill(memory_[t].begin(), memory_[t].end(), std::byte{0x5a});
    }
  }
  /// As memory that was given back: what is there when it comes again is anything.
  void Drop() {
    whole_ = false;
    for (auto& tensor : memory_) std::fill(tensor.begin(), tensor.end(), std::byte{0x5a});
  }
  Status Attach(const std::string& directory) {
    DW_ASSIGN_OR_RETURN(auto client, engine::EngineWeights::Open(directory, 1));
    const Layout& layout = client->layout();
    if (layout.size() != memory_.size()) return absl::InvalidArgumentError("another model");
    engine::Binding binding;
    for (uint32_t t = 0; t < layout.size(); ++t) {
      binding.storages.push_back({layout.tensor(t).name, memory_[t].size()});
      binding.memory.push_back(memory_[t].data());
      if (memory_[t].empty()) continue;
      engine::Box box{.tensor = t, .storage = t, .copy = {}};
      box.copy.run_bytes = layout.bytes(t);
      binding.boxes.push_back(box);
    }
    DW_RETURN_IF_ERROR(client->Bind(binding));
    DW_ASSIGN_OR_RETURN(const engine::Comparison found, client->Adopt());
    if (!found.different.empty()) {
      return Errorf(StatusCode::kInvalidArgument,
                    "deltawire cannot update this model in place: {} tensors have other bytes: it "
                    "loaded another version",
                    found.different.size());
    }
    client_ = std::move(client);
    return {};
  }
  void Detach() { client_.reset(); }

  engine::EngineWeights* client() { return client_.get(); }
  std::vector<std::byte> all() const {
    std::vector<std::byte> bytes;
    for (const auto& tensor : memory_) bytes.insert(bytes.end(), tensor.begin(), tensor.end());
    return bytes;
  }
  void Corrupt(size_t byte) {
    for (auto& tensor : memory_) {
      if (byte < tensor.size()) {
        tensor[byte] ^= std::byte{1};
        return;
      }
      byte -= tensor.size();
    }
  }
  /// As the plug-ins: what has drifted is told once, and healed by the next update.
  Status Check() {
    DW_ASSIGN_OR_RETURN(const engine::Comparison found, client_->Check());
    told_ = !told_ && !found.different.empty();
    if (!told_) return {};
    return Errorf(StatusCode::kDataLoss, "the engine's memory has drifted in {}; the next update",
                  found.different.front());
  }
  bool whole() const { return whole_; }
  const fs::path& directory() const { return directory_; }

 private:
  const fs::path directory_;
  std::vector<std::vector<std::byte>> memory_;  // by tensor
  bool whole_ = false;
  bool told_ = false;
  std::unique_ptr<engine::EngineWeights> client_;
};

}  // namespace

struct EngineStandIn::Impl {
  Impl(Api a, fs::path directory) : api(a), weights(std::move(directory)), acceptor(context) {
    acceptor.open(tcp::v4());
    acceptor.set_option(asio::socket_base::reuse_address(true));
    acceptor.bind({asio::ip::address_v4::loopback(), 0});
    port = acceptor.local_endpoint().port();
    acceptor.close();
  }

  asio::awaitable<void> Accept();
  asio::awaitable<void> Serve(std::shared_ptr<beast::tcp_stream> stream);
  template <typename Stream>
  asio::awaitable<void> Talk(Stream& stream);
  std::optional<Fault> TakeFault(const std::string& path);
  Answer Handle(const http::request<http::string_body>& request, bool torn, bool stall);
  Answer Vllm(const Target& target, const Json& body, bool torn, bool stall);
  Answer VllmStart();
  Answer VllmUpdate(const Json& body);
  Answer VllmProve(uint64_t version);
  Answer SglangApi(const Target& target, const Json& body, bool torn, bool stall);
  Answer SglangUpdate(const std::string& path, const Json& body, bool torn, bool stall);
  Status Order(const std::string& path, bool prepare_only);
  Status Load(bool torn, bool stall);
  void Sleep(int level);
  void WakeUp(const std::string& tags);
  std::string Metrics() const;
  void Forbid(bool forbidden, const std::string& what) {
    if (forbidden) wrong.push_back(what);
  }

  const Api api;
  uint16_t port = 0;

  // Used by the server's thread, and by others under mu.
  mutable std::mutex mu;
  std::condition_variable cv;
  Weights weights;
  bool paused = false;
  bool session = false;
  std::string version;
  std::optional<Identity> before;  // SGLang: of the last update
  std::map<std::string, Fault> faults;
  std::vector<std::string> calls, wrong;
  bool going_on = false, stalled = false;
  std::string key;  // that requests must show; empty: none
  int running = kRunningRequests, aborted = 0;
  // Of vLLM.
  std::vector<std::string> sleeping;  // its parts that sleep
  int sleep_level = 0;                // 0: awake
  uint64_t probes = 0;
  // Whether running requests went back into the queue, and its cache of encoders' outputs.
  bool preempted = false, has_encoder_reset = true, old_encoder_outputs = false;

  std::optional<asio::ssl::context> tls;  // none: plaintext
  asio::io_context context;
  tcp::acceptor acceptor;
  std::list<std::weak_ptr<beast::tcp_stream>> streams;
  std::thread thread;
};

Status EngineStandIn::Impl::Load(bool torn, bool stall) {
  if (torn) {
    weights.Tear();
    return absl::InternalError("out of memory");
  }
  return weights.Load([this, stall] {
    if (!stall) return;
    // Called with mu held by Serve; a caller of GoOn takes it meanwhile.
    std::unique_lock lock(mu, std::adopt_lock);
    stalled = true;
    cv.notify_all();
    cv.wait(lock, [this] { return going_on; });
    stalled = going_on = false;
    lock.release();
  });
}

Answer EngineStandIn::Impl::VllmStart() {
  if (session) {
    return VllmError(500,
                     "start_weight_update called while a weight update is already active. Call "
                     "finish_weight_update first.");
  }
  if (weights.client() == nullptr) {
    return VllmError(500, "deltawire: /init_weight_transfer_engine comes first");
  }
  if (const Status checked = weights.Check(); !checked.ok()) {
    return VllmError(500, "deltawire: " + std::string(MessageOf(checked)));
  }
  const auto prepared = weights.client()->Prepare();
  if (!prepared.ok()) return VllmError(500, MessageOf(prepared.status()));
  session = true;
  return {200, {{"message", "Weight update started"}}};
}

Answer EngineStandIn::Impl::VllmUpdate(const Json& body) {
  if (!body.contains("update_info")) return Unprocessable("update_info");
  if (!session) return VllmError(500, "start_weight_update must be called before update_weights.");
  const auto failed = [this](int code, const std::string& why) {
    session = false;
    return VllmError(code, why);
  };
  const Json& info = body["update_info"];
  for (const auto& [field, value] : info.items()) {
    if (field != "version" && field != "rollback" && field != "check") {
      return failed(400, "UpdateInfo.__init__() got an unexpected keyword argument " + field);
    }
  }
  const bool check = info.value("check", false);
  Forbid(!paused && !check, "/update_weights while it computes");
  engine::EngineWeights& client = *weights.client();
  if (info.value("rollback", false)) {
    const Status back = client.Rollback();
    old_encoder_outputs = !back.ok();
    if (!back.ok()) return failed(500, "deltawire: " + std::string(MessageOf(back)));
    return {200, {{"message", "Weights updated"}}};
  }
  if (info.contains("version") && client.committed().id.version != info["version"]) {
    return failed(400, "another version was prepared");
  }
  Forbid(check && !(client.held() == client.committed()), "a check of another version");
  old_encoder_outputs = old_encoder_outputs || !check;
  Status applied = client.Apply();
  if (applied.ok() && check) applied = weights.Check();
  if (!applied.ok()) return failed(500, "deltawire: " + std::string(MessageOf(applied)));
  return {200, {{"message", "Weights updated"}}};
}

Answer EngineStandIn::Impl::VllmProve(uint64_t wanted) {
  if (weights.client() == nullptr || weights.client()->held().id.version != wanted) {
    return VllmError(500, "deltawire: the memory is another version");
  }
  const Status proven = weights.Check();
  if (!proven.ok()) return VllmError(500, "deltawire: " + std::string(MessageOf(proven)));
  return {200, {{"message", "Weight transfer initialized"}}};
}

void EngineStandIn::Impl::Sleep(int level) {
  Forbid(session, "put to sleep in the middle of an update");
  paused = true;
  sleep_level = level;
  sleeping = {"weights", "kv_cache"};
  if (level == 2) weights.Drop();
}

void EngineStandIn::Impl::WakeUp(const std::string& tags) {
  std::erase_if(sleeping, [&](const std::string& part) { return tags.empty() || part == tags; });
  if (!sleeping.empty()) return;
  sleep_level = 0;
  paused = false;
}

/// As vLLM's gauge of its sleep, which is set when it has fallen asleep and when it is wholly
/// awake.
std::string EngineStandIn::Impl::Metrics() const {
  std::string text = "# HELP vllm:engine_sleep_state Engine sleep state\n";
  const auto row = [&text](const char* state, bool on) {
    text += fmt::format(
        "vllm:engine_sleep_state{{engine=\"0\",model_name=\"m\",sleep_state=\"{}\"}} "
        "{}\n",
        state, on ? "1.0" : "0.0");
  };
  row("awake", sleep_level == 0);
  row("weights_offloaded", sleep_level == 1);
  row("discard_all", sleep_level == 2);
  return text;
}

Answer EngineStandIn::Impl::Vllm(const Target& target, const Json& body, bool torn, bool stall) {
  const std::string& path = target.path;
  const auto option = [&target](const char* name) {
    const auto found = target.query.find(name);
    return found == target.query.end() ? std::string() : found->second;
  };
  const bool touches = path == "/init_weight_transfer_engine" || path == "/start_weight_update" ||
                       path == "/update_weights" || path == "/collective_rpc";
  Forbid(touches && !sleeping.empty(), path + " on memory that was given back");
  if (path == "/pause") {
    const std::string mode = option("mode");
    if (mode != "keep" && mode != "wait" && mode != "abort" && !mode.empty()) {
      return Unprocessable("mode");
    }
    paused = true;
    // "wait" would answer when they have ended by themselves, as they do here at once.
    if (mode == "abort" || mode.empty()) aborted += running;
    if (mode != "keep") running = 0;
    return {200, {{"status", "paused"}}};
  }
  if (path == "/resume") {
    Forbid(!weights.whole(), "resumed with weights of no version");
    Forbid(session, "resumed in the middle of an update");
    Forbid(old_encoder_outputs && has_encoder_reset,
           "resumed with encoders' outputs of older weights");
    paused = preempted = false;
    running = kRunningRequests;
    return {200, {{"status", "resumed"}}};
  }
  if (path == "/init_weight_transfer_engine") {
    if (!body.contains("init_info")) return Unprocessable("init_info");
    if (body["init_info"].contains("prove")) return VllmProve(body["init_info"]["prove"]);
    const Status attached = weights.Attach(body["init_info"].value("directory", ""));
    if (!attached.ok()) return VllmError(400, MessageOf(attached));
    return {200, {{"message", "Weight transfer initialized"}}};
  }
  if (path == "/shutdown_weight_transfer_engine") {
    if (session) {
      return VllmError(500, "Cannot release a trainer connection during a weight update");
    }
    weights.Detach();
    return {200, {{"message", "Weight transfer shut down"}}};
  }
  if (path == "/start_weight_update") return VllmStart();
  if (path == "/update_weights") return VllmUpdate(body);
  if (path == "/finish_weight_update") {
    if (!session) {
      return VllmError(500, "finish_weight_update called without a matching start_weight_update.");
    }
    session = false;
    if (body.contains("weight_version")) version = body["weight_version"];
    return {200, {{"message", "Weight update finished"}}};
  }
  if (path == "/reset_prefix_cache") {
    const bool success = option("reset_running_requests") == "true" || running == 0;
    preempted = success;
    return {200, {{"success", success}}};
  }
  if (path == "/reset_encoder_cache" && has_encoder_reset) {
    Forbid(running > 0 && !preempted, "/reset_encoder_cache below requests that use it");
    old_encoder_outputs = false;
    return {200, nullptr};  // a Response without content
  }
  if (path == "/collective_rpc") {
    if (body.value("method", "") != "reload_weights") return VllmError(400, "no such method");
    Forbid(!paused, "reload_weights while it computes");
    Forbid(weights.client() != nullptr, "reload_weights below an attached client");
    const fs::path from = body["kwargs"].value("weights_path", "");
    old_encoder_outputs = true;
    const Status loaded =
        from == weights.directory() ? Load(torn, stall) : absl::NotFoundError("no such directory");
    if (!loaded.ok()) return VllmError(500, MessageOf(loaded));
    return {200, {{"results", Json::array({nullptr})}}};
  }
  if (path == "/update_weight_version") {
    if (!body.contains("new_version")) return Unprocessable("new_version");
    version = body["new_version"];
    return {200, {{"success", true}, {"new_version", version}}};
  }
  return {404, {{"detail", "Not Found"}}};
}

// "deltawire:DIRECTORY?version=N[&prepare|&rollback]", as python/deltawire/engine/sglang.py.
Status EngineStandIn::Impl::Order(const std::string& path, bool prepare_only) {
  const Target order = ParseTarget(path.substr(kScheme.size()));
  const bool check = order.query.contains("check");
  if ((check || order.query.contains("prepare")) != prepare_only ||
      !order.query.contains("version")) {
    return absl::InvalidArgumentError("deltawire: no such option");
  }
  const uint64_t wanted = std::stoull(order.query.at("version"));
  if (weights.client() == nullptr) DW_RETURN_IF_ERROR(weights.Attach(order.path));
  engine::EngineWeights& client = *weights.client();
  if (check) return weights.Check();
  if (order.query.contains("rollback")) {
    if (!before || before->id.version != wanted) {
      return absl::FailedPreconditionError("deltawire: a rollback leads to nothing");
    }
    before.reset();
    return client.Rollback();
  }
  if (client.held().id.version == wanted && client.committed().id.version != wanted) return {};
  const Identity held = client.held();
  if (prepare_only) {
    DW_RETURN_IF_ERROR(weights.Check());
    DW_ASSIGN_OR_RETURN(const auto prepared, client.Prepare());
    if (prepared.to.id.version == wanted) return {};
    return absl::FailedPreconditionError("deltawire: another version is committed");
  }
  DW_RETURN_IF_ERROR(client.Apply());
  before = held;
  return {};
}

Answer EngineStandIn::Impl::SglangUpdate(const std::string& path, const Json& body, bool torn,
                                         bool stall) {
  Status updated;
  const bool flush = body.value("flush_cache", true);
  if (path.starts_with(kScheme)) {
    // The plug-in asks before it writes; SGLang itself would write, and fail at the flush.
    if (flush && running > 0) return Sglang(false, "deltawire: requests are running");
    updated = Order(path, false);
  } else {
    before.reset();
    weights.Detach();
    updated = path == weights.directory() ? Load(torn, stall) : absl::NotFoundError("no such path");
  }
  if (!updated.ok()) return Sglang(false, MessageOf(updated));
  if (flush && running > 0) {
    return Sglang(false,
                  "Weights were updated, but the cache was not flushed because requests are "
                  "still running or queued.");
  }
  // It waits for all running requests unless it is paused, and these here do not end.
  Forbid(!paused, "/update_weights_from_disk while it computes");
  if (body.contains("weight_version")) version = body["weight_version"];
  return Sglang(true, "Succeeded to update model weights.");
}

Answer EngineStandIn::Impl::SglangApi(const Target& target, const Json& body, bool torn,
                                      bool stall) {
  const std::string& path = target.path;
  if (path == "/pause_generation") {
    const std::string mode = body.value("mode", "abort");
    if (mode != "retract" && mode != "in_place" && mode != "abort") return Unprocessable("mode");
    paused = true;
    if (mode == "abort") aborted += running;
    if (mode != "in_place") running = 0;  // retracted ones wait, and are no obstacle to a flush
    return {200, {{"message", "Generation paused successfully."}, {"status", "ok"}}};
  }
  if (path == "/continue_generation") {
    Forbid(!weights.whole(), "resumed with weights of no version");
    paused = false;
    running = kRunningRequests;
    return {200, {{"message", "Generation continued successfully."}, {"status", "ok"}}};
  }
  if (path == "/weights_checker") {
    const Status checked = Order(body.value("action", ""), true);
    return Sglang(checked.ok(), MessageOf(checked));
  }
  if (path == "/update_weights_from_disk") {
    if (!body.contains("model_path")) return Unprocessable("model_path");
    return SglangUpdate(body["model_path"], body, torn, stall);
  }
  return {404, {{"detail", "Not Found"}}};
}

Answer EngineStandIn::Impl::Handle(const http::request<http::string_body>& request, bool torn,
                                   bool stall) {
  const Target target = ParseTarget(std::string(request.target()));
  const bool probe = target.path == (api == Api::kVllm ? "/weight_info" : "/model_info");
  if (probe) {
    if (request.method() != http::verb::get) return {405, {{"detail", "Method Not Allowed"}}};
    return {200, {{"weight_version", version}}};
  }
  if (api == Api::kVllm && request.method() == http::verb::get) {
    // True of an engine that is merely paused, too.
    const bool sleeps = paused || !sleeping.empty();
    if (target.path == "/is_sleeping") ++probes;
    if (target.path == "/is_sleeping") return {200, {{"is_sleeping", sleeps}}};
    if (target.path == "/metrics") return {200, Metrics()};
  }
  if (request.method() != http::verb::post) return {405, {{"detail", "Method Not Allowed"}}};
  Json body = Json::object();
  if (!request.body().empty()) {
    if (request[http::field::content_type] != "application/json") return Unprocessable("json");
    body = Json::parse(request.body(), nullptr, false);
    if (!body.is_object()) return Unprocessable("body");
  }
  return api == Api::kVllm ? Vllm(target, body, torn, stall) : SglangApi(target, body, torn, stall);
}

std::optional<EngineStandIn::Fault> EngineStandIn::Impl::TakeFault(const std::string& path) {
  const auto found = faults.find(path);
  if (found == faults.end() || found->second.times == 0) return std::nullopt;
  --found->second.times;
  return found->second;
}

asio::awaitable<void> EngineStandIn::Impl::Serve(std::shared_ptr<beast::tcp_stream> stream) {
  if (!tls) co_return co_await Talk(*stream);
  asio::ssl::stream<beast::tcp_stream&> secret(*stream, *tls);
  const auto [error] = co_await secret.async_handshake(asio::ssl::stream_base::server, kAwait);
  if (!error) co_await Talk(secret);
}

template <typename Stream>
asio::awaitable<void> EngineStandIn::Impl::Talk(Stream& stream) {
  beast::flat_buffer buffer;
  http::request<http::string_body> request;
  const auto [read_error, n] = co_await http::async_read(stream, buffer, request, kAwait);
  if (read_error) co_return;
  const std::string path = ParseTarget(std::string(request.target())).path;
  http::response<http::string_body> response;
  std::optional<Fault> fault;
  {
    std::lock_guard lock(mu);
    if (request.method() == http::verb::post) calls.push_back(path);
    fault = TakeFault(path);
    cv.notify_all();
    if (!key.empty() && request[http::field::authorization] != "Bearer " + key) {
      fault.reset();
      response.result(http::status::unauthorized);
      response.body() = R"({"error": "Unauthorized"})";
    } else if (fault && fault->kind == Kind::kRaise) {
      session = false;
    } else if (!fault || fault->kind >= Kind::kCutDone) {
      const Answer answer = Handle(request, fault && fault->kind == Kind::kTorn,
                                   fault && fault->kind == Kind::kStall);
      response.result(static_cast<unsigned>(answer.code));
      if (answer.body.is_string()) {
        response.body() = answer.body.get<std::string>();
      } else if (!answer.body.is_null()) {
        response.body() = answer.body.dump();
      }
    }
  }
  if (fault && fault->kind == Kind::kHang) {
    char end = 0;
    co_await stream.async_read_some(asio::buffer(&end, 1), kAwait);  // until the caller goes
    co_return;
  }
  if (fault && (fault->kind == Kind::kCut || fault->kind == Kind::kCutDone)) co_return;
  if (fault && (fault->kind == Kind::kAnswer || fault->kind == Kind::kRaise)) {
    response.result(static_cast<unsigned>(fault->code));
    response.body() = fault->body;
  }
  if (fault && fault->kind == Kind::kGarbage) response.body() = "<html>It works!</html>";
  response.set(http::field::content_type, "application/json");
  response.keep_alive(false);
  response.prepare_payload();
  co_await http::async_write(stream, response, kAwait);
}

asio::awaitable<void> EngineStandIn::Impl::Accept() {
  while (true) {
    auto [error, socket] = co_await acceptor.async_accept(kAwait);
    if (error) co_return;
    auto stream = std::make_shared<beast::tcp_stream>(std::move(socket));
    streams.push_back(stream);
    asio::co_spawn(context, Serve(stream), asio::detached);
  }
}

EngineStandIn::EngineStandIn(Api api, fs::path directory)
    : impl_(std::make_unique<Impl>(api, std::move(directory))) {}

EngineStandIn::~EngineStandIn() { Stop(); }

void EngineStandIn::Start() {
  Impl& i = *impl_;
  {
    std::lock_guard lock(i.mu);
    i.weights.Forget();
    i.paused = i.session = false;
    i.running = kRunningRequests;
    i.preempted = i.old_encoder_outputs = false;
    i.sleeping.clear();
    i.sleep_level = 0;
    i.version = "default";
    i.before.reset();
    i.faults.clear();
    (void)i.Load(false, false);  // a directory without a version yet: it gets one by a reload
  }
  i.context.restart();
  i.acceptor.open(tcp::v4());
  i.acceptor.set_option(asio::socket_base::reuse_address(true));
  i.acceptor.bind({asio::ip::address_v4::loopback(), i.port});
  i.acceptor.listen();
  asio::co_spawn(i.context, i.Accept(), asio::detached);
  i.thread = std::thread([&i] { i.context.run(); });
}

void EngineStandIn::Stop() {
  Impl& i = *impl_;
  if (!i.thread.joinable()) return;
  GoOn();
  asio::post(i.context, [&i] {
    i.acceptor.close();
    for (const auto& weak : i.streams) {
      if (const auto stream = weak.lock()) stream->close();
    }
    i.streams.clear();
  });
  i.thread.join();
}

std::string EngineStandIn::url() const {
  return fmt::format("{}://127.0.0.1:{}", impl_->tls ? "https" : "http", impl_->port);
}

void EngineStandIn::SpeakTls(const std::string& certificate, const std::string& key) {
  impl_->tls.emplace(asio::ssl::context::tls_server);
  impl_->tls->use_certificate_chain(asio::buffer(certificate));
  impl_->tls->use_private_key(asio::buffer(key), asio::ssl::context::pem);
}

void EngineStandIn::WantKey(const std::string& key) {
  std::lock_guard lock(impl_->mu);
  impl_->key = key;
}

void EngineStandIn::Sleep(int level) {
  std::lock_guard lock(impl_->mu);
  impl_->Sleep(level);
}

void EngineStandIn::WakeUp(const std::string& tags) {
  std::lock_guard lock(impl_->mu);
  impl_->WakeUp(tags);
}

void EngineStandIn::Pause() {
  std::lock_guard lock(impl_->mu);
  impl_->paused = true;
}

uint64_t EngineStandIn::probes() const {
  std::lock_guard lock(impl_->mu);
  return impl_->probes;
}

void EngineStandIn::LackEncoderReset() {
  std::lock_guard lock(impl_->mu);
  impl_->has_encoder_reset = false;
}

int EngineStandIn::aborted() const {
  std::lock_guard lock(impl_->mu);
  return impl_->aborted;
}

void EngineStandIn::Set(const std::string& path, const Fault& fault) {
  std::lock_guard lock(impl_->mu);
  impl_->faults[path] = fault;
}

void EngineStandIn::GoOn() {
  std::lock_guard lock(impl_->mu);
  if (impl_->stalled) impl_->going_on = true;
  impl_->cv.notify_all();
}

std::vector<std::string> EngineStandIn::TakeCalls() {
  std::lock_guard lock(impl_->mu);
  return std::exchange(impl_->calls, {});
}

bool EngineStandIn::Called(const std::string& path) const {
  std::lock_guard lock(impl_->mu);
  return std::find(impl_->calls.begin(), impl_->calls.end(), path) != impl_->calls.end();
}

bool EngineStandIn::paused() const {
  std::lock_guard lock(impl_->mu);
  return impl_->paused;
}

std::string EngineStandIn::weight_version() const {
  std::lock_guard lock(impl_->mu);
  return impl_->version;
}

void EngineStandIn::Corrupt(size_t byte) {
  std::lock_guard lock(impl_->mu);
  impl_->weights.Corrupt(byte);
}

std::vector<std::byte> EngineStandIn::weights() const {
  std::lock_guard lock(impl_->mu);
  return impl_->weights.whole() ? impl_->weights.all() : std::vector<std::byte>();
}

std::vector<std::string> EngineStandIn::violations() const {
  std::lock_guard lock(impl_->mu);
  return impl_->wrong;
}

}  // namespace deltawire::testing
