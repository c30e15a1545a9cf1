#include "tests/support/stand_in_vllm.h"

#include <algorithm>

namespace deltawire::testing {
namespace {

using Json = nlohmann::json;

constexpr const char* kPlugin = "deltawire_call";

StandInAnswer VllmError(int code, std::string_view message) {
  return {code,
          {{"error", {{"message", message}, {"type", ""}, {"param", nullptr}, {"code", code}}}}};
}

}  // namespace

void VllmStandIn::Start() {
  preempted_ = old_encoder_outputs_ = false;
  before_.reset();
  unread_.clear();
  ++process_;
  sleeping_.clear();
  sleep_level_ = 0;
  StandInContract::Start();
}

StandInAnswer VllmStandIn::Get(const StandInTarget& target) {
  if (target.path == "/weight_info") return {200, {{"weight_version", version}}};
  if (target.path == "/metrics") return {200, Metrics()};
  if (target.path == "/get_world_size") return {200, {{"world_size", 2}}};
  if (target.path != "/is_sleeping") return {405, {{"detail", "Method Not Allowed"}}};
  ++probes_;
  // True of an engine that is merely paused, too.
  return {200, {{"is_sleeping", paused || !sleeping_.empty()}}};
}

StandInAnswer VllmStandIn::Post(const StandInTarget& target, const Json& body, Loads loads) {
  const std::string& path = target.path;
  const auto option = [&target](const char* name) {
    const auto found = target.query.find(name);
    return found == target.query.end() ? std::string() : found->second;
  };
  if (path == "/pause") return Pause(option("mode"));
  if (path == "/resume") return Resume();
  if (path == "/reset_prefix_cache") {
    const bool success = option("reset_running_requests") == "true" || running == 0;
    preempted_ = success;
    return {200, {{"success", success}}};
  }
  if (path == "/reset_encoder_cache" && has_encoder_reset_) {
    Forbid(running > 0 && !preempted_, "/reset_encoder_cache below requests that use it");
    old_encoder_outputs_ = false;
    return {200, nullptr};  // a Response without content
  }
  if (path == "/collective_rpc") return Reload(body, loads);
  if (path == "/update_weight_version") {
    if (!body.contains("new_version")) return Unprocessable("new_version");
    version = body["new_version"];
    return {200, {{"success", true}, {"new_version", version}}};
  }
  return {404, {{"detail", "Not Found"}}};
}

StandInAnswer VllmStandIn::Pause(const std::string& mode) {
  if (mode != "keep" && mode != "wait" && mode != "abort" && !mode.empty()) {
    return Unprocessable("mode");
  }
  paused = true;
  if (mode == "abort" || mode.empty()) aborted += running;
  const auto end = std::chrono::steady_clock::now() + request_time;
  while (mode == "wait" && paused && std::chrono::steady_clock::now() < end) {
    if (!others()) break;
  }
  if (mode != "keep" && paused) running = 0;
  return {200, {{"status", "paused"}}};
}

StandInAnswer VllmStandIn::Resume() {
  Forbid(!weights.whole(), "resumed with weights of no version");
  Forbid(old_encoder_outputs_ && has_encoder_reset_,
         "resumed with encoders' outputs of older weights");
  paused = preempted_ = false;
  running = kRunningRequests;
  return {200, {{"status", "resumed"}}};
}

std::string VllmStandIn::NameOf(const StandInTarget& target, const Json& body) const {
  if (!body.is_object() || body.value("method", "") != kPlugin) return target.path;
  return body["kwargs"].value("call", "");
}

bool VllmStandIn::TakesTurns(const std::string& name) const {
  return name == "/collective_rpc" || name.find('/') == name.npos;
}

/// Two workers, of which this one process plays both.
StandInAnswer VllmStandIn::Replies(const Json& kwargs, const Status& done) {
  Json held = nullptr;
  if (weights.client() != nullptr && !weights.client()->held().empty()) {
    const Identity id = weights.client()->held();
    held = {{"version", id.id.version},
            {"epoch", id.id.epoch},
            {"lineage", id.lineage.Hex()},
            {"root", fmt::format("{:016x}", id.root)}};
  }
  const std::string reason(MessageOf(done));
  Json results = Json::array();
  for (int rank = 0; rank < 2; ++rank) {
    results.push_back({{"nonce", kwargs.value("nonce", "")},
                       {"rank", rank},
                       {"ranks", 2},
                       {"replicas", 1},
                       {"engine", fmt::format("{:016x}", process_)},
                       {"ok", done.ok()},
                       {"reason", reason},
                       {"drifted", reason.find("has drifted in ") != reason.npos},
                       {"anew", reason.find("start the engine anew") != reason.npos},
                       {"corrupts", false},
                       {"held", held},
                       {"untaken", Json::array()}});
  }
  // The second worker's replies are read in their order.
  if (!unread_.empty()) {
    unread_.push_back(results[1]);
    results[1] = unread_.front();
    unread_.erase(unread_.begin());
  }
  return {200, {{"results", results}}};
}

StandInAnswer VllmStandIn::Refusal(const Json& body, int code, const std::string& text) {
  if (!body.is_object() || body.value("method", "") != kPlugin) return {code, text};
  return Replies(body["kwargs"], absl::InternalError("out of memory"));
}

StandInAnswer VllmStandIn::Reload(const Json& body, Loads loads) {
  const std::string method = body.value("method", "");
  Forbid(body.contains("timeout"), "a timeout that leaves replies unread");
  if (method == kPlugin && has_plugin_) {
    const std::string call = body["kwargs"].value("call", "");
    Forbid(call != "held" && call != "discard" && !sleeping_.empty(),
           call + " on memory that was given back");
    return Replies(body["kwargs"], Call(body["kwargs"], loads));
  }
  if (method != "reload_weights") {
    Forbid(method == kPlugin, "a call of the plug-in without one, which raises");
    FailForeignCall();
    return VllmError(500, "no such method");
  }
  Forbid(!paused, "reload_weights while it computes");
  Forbid(weights.client() != nullptr, "reload_weights below an attached client");
  Forbid(!sleeping_.empty(), "reload_weights on memory that was given back");
  const std::filesystem::path from = body["kwargs"].value("weights_path", "");
  old_encoder_outputs_ = true;
  const Status loaded =
      from == weights.directory() ? Load(loads) : absl::NotFoundError("no such directory");
  if (!loaded.ok()) return VllmError(500, MessageOf(loaded));
  return {200, {{"results", Json::array({nullptr, nullptr})}}};
}

Status VllmStandIn::Call(const Json& kwargs, Loads loads) {
  const std::string call = kwargs.value("call", "");
  if (call == "held") return {};
  if (call == "attach") {
    before_.reset();
    weights.Detach();
    return weights.Attach(kwargs.value("directory", ""));
  }
  if (call == "reload") {
    Forbid(!paused, "reload while it computes");
    before_.reset();
    weights.Detach();
    old_encoder_outputs_ = true;
    const std::filesystem::path from = kwargs.value("directory", "");
    return from == weights.directory() ? Load(loads) : absl::NotFoundError("no such directory");
  }
  engine::EngineWeights* const client = weights.client();
  if (client == nullptr) {
    if (call == "discard") return {};
    return absl::FailedPreconditionError("attach comes first");
  }
  if (call == "discard") {
    client->Discard();
    return {};
  }
  if (call == "check") return weights.Check();
  if (call == "prove") return Prove(kwargs);
  if (call == "prepare") {
    before_.reset();
    DW_RETURN_IF_ERROR(weights.Check());
    DW_ASSIGN_OR_RETURN(const auto prepared, client->Prepare());
    if (prepared.to.id.version == kwargs.value("version", uint64_t{0})) return {};
    return absl::FailedPreconditionError("another version is committed");
  }
  Forbid(!paused, call + " while it computes");
  if (call == "apply") {
    const Identity held = client->held();
    old_encoder_outputs_ = true;
    DW_RETURN_IF_ERROR(client->Apply());
    before_ = held;
    return {};
  }
  if (call != "rollback") return absl::InvalidArgumentError("there is no call " + call);
  if (!before_ || before_->id.version != kwargs.value("version", uint64_t{0})) {
    return absl::FailedPreconditionError("no update was applied that could be undone");
  }
  before_.reset();
  const Status back = client->Rollback();
  old_encoder_outputs_ = !back.ok();
  return back;
}

Status VllmStandIn::Prove(const Json& kwargs) {
  const Identity id = weights.client()->held();
  if (id.id.version != kwargs.value("version", uint64_t{0}) ||
      id.id.epoch != kwargs.value("epoch", uint64_t{0}) ||
      id.lineage.Hex() != kwargs.value("lineage", "") ||
      fmt::format("{:016x}", id.root) != kwargs.value("root", "")) {
    return absl::FailedPreconditionError("the memory is another version");
  }
  return weights.Check();
}

void VllmStandIn::Sleep(int level) {
  paused = true;
  sleep_level_ = level;
  sleeping_ = {"weights", "kv_cache"};
  if (level == 2) weights.Drop();
}

void VllmStandIn::WakeUp(const std::string& tags) {
  std::erase_if(sleeping_, [&](const std::string& part) { return tags.empty() || part == tags; });
  if (!sleeping_.empty()) return;
  sleep_level_ = 0;
  paused = false;
}

/// As vLLM's gauge of its sleep, which is set when it has fallen asleep and when it is wholly
/// awake.
std::string VllmStandIn::Metrics() const {
  std::string text = "# HELP vllm:engine_sleep_state Engine sleep state\n";
  const auto row = [&text](const char* state, bool on) {
    text += fmt::format(
        "vllm:engine_sleep_state{{engine=\"0\",model_name=\"m\",sleep_state=\"{}\"}} "
        "{}\n",
        state, on ? "1.0" : "0.0");
  };
  if (has_plugin_) text += "deltawire_plugin_calls 1.0\n";
  row("awake", sleep_level_ == 0);
  row("weights_offloaded", sleep_level_ == 1);
  row("discard_all", sleep_level_ == 2);
  return text;
}

}  // namespace deltawire::testing
