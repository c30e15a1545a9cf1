#include "tests/support/stand_in_vllm.h"

#include <algorithm>

namespace deltawire::testing {
namespace {

using Json = nlohmann::json;

StandInAnswer VllmError(int code, std::string_view message) {
  return {code,
          {{"error", {{"message", message}, {"type", ""}, {"param", nullptr}, {"code", code}}}}};
}

}  // namespace

void VllmStandIn::Start() {
  session_ = preempted_ = old_encoder_outputs_ = false;
  sleeping_.clear();
  sleep_level_ = 0;
  StandInContract::Start();
}

StandInAnswer VllmStandIn::Get(const StandInTarget& target) {
  if (target.path == "/weight_info") return {200, {{"weight_version", version}}};
  if (target.path == "/metrics") return {200, Metrics()};
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
  const bool touches = path == "/init_weight_transfer_engine" || path == "/start_weight_update" ||
                       path == "/update_weights" || path == "/collective_rpc";
  Forbid(touches && !sleeping_.empty(), path + " on memory that was given back");
  if (path == "/pause") return Pause(option("mode"));
  if (path == "/resume") return Resume();
  if (path == "/init_weight_transfer_engine") return Init(body);
  if (path == "/shutdown_weight_transfer_engine") {
    if (session_) {
      return VllmError(500, "Cannot release a trainer connection during a weight update");
    }
    weights.Detach();
    return {200, {{"message", "Weight transfer shut down"}}};
  }
  if (path == "/start_weight_update") return StartUpdate();
  if (path == "/update_weights") return Update(body);
  if (path == "/finish_weight_update") {
    if (!session_) {
      return VllmError(500, "finish_weight_update called without a matching start_weight_update.");
    }
    session_ = false;
    if (body.contains("weight_version")) version = body["weight_version"];
    return {200, {{"message", "Weight update finished"}}};
  }
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
  // "wait" would answer when they have ended by themselves, as they do here at once.
  if (mode == "abort" || mode.empty()) aborted += running;
  if (mode != "keep") running = 0;
  return {200, {{"status", "paused"}}};
}

StandInAnswer VllmStandIn::Resume() {
  Forbid(!weights.whole(), "resumed with weights of no version");
  Forbid(session_, "resumed in the middle of an update");
  Forbid(old_encoder_outputs_ && has_encoder_reset_,
         "resumed with encoders' outputs of older weights");
  paused = preempted_ = false;
  running = kRunningRequests;
  return {200, {{"status", "resumed"}}};
}

StandInAnswer VllmStandIn::Init(const Json& body) {
  if (!body.contains("init_info")) return Unprocessable("init_info");
  if (body["init_info"].contains("prove")) return Prove(body["init_info"]["prove"]);
  const Status attached = weights.Attach(body["init_info"].value("directory", ""));
  if (!attached.ok()) return VllmError(400, MessageOf(attached));
  return {200, {{"message", "Weight transfer initialized"}}};
}

StandInAnswer VllmStandIn::Reload(const Json& body, Loads loads) {
  if (body.value("method", "") != "reload_weights") return VllmError(400, "no such method");
  Forbid(!paused, "reload_weights while it computes");
  Forbid(weights.client() != nullptr, "reload_weights below an attached client");
  const std::filesystem::path from = body["kwargs"].value("weights_path", "");
  old_encoder_outputs_ = true;
  const Status loaded =
      from == weights.directory() ? Load(loads) : absl::NotFoundError("no such directory");
  if (!loaded.ok()) return VllmError(500, MessageOf(loaded));
  return {200, {{"results", Json::array({nullptr})}}};
}

StandInAnswer VllmStandIn::StartUpdate() {
  if (session_) {
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
  session_ = true;
  return {200, {{"message", "Weight update started"}}};
}

StandInAnswer VllmStandIn::Update(const Json& body) {
  if (!body.contains("update_info")) return Unprocessable("update_info");
  if (!session_) return VllmError(500, "start_weight_update must be called before update_weights.");
  const auto failed = [this](int code, const std::string& why) {
    session_ = false;
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
    old_encoder_outputs_ = !back.ok();
    if (!back.ok()) return failed(500, "deltawire: " + std::string(MessageOf(back)));
    return {200, {{"message", "Weights updated"}}};
  }
  if (info.contains("version") && client.committed().id.version != info["version"]) {
    return failed(400, "another version was prepared");
  }
  Forbid(check && !(client.held() == client.committed()), "a check of another version");
  old_encoder_outputs_ = old_encoder_outputs_ || !check;
  Status applied = client.Apply();
  if (applied.ok() && check) applied = weights.Check();
  if (!applied.ok()) return failed(500, "deltawire: " + std::string(MessageOf(applied)));
  return {200, {{"message", "Weights updated"}}};
}

StandInAnswer VllmStandIn::Prove(uint64_t wanted) {
  if (weights.client() == nullptr || weights.client()->held().id.version != wanted) {
    return VllmError(500, "deltawire: the memory is another version");
  }
  const Status proven = weights.Check();
  if (!proven.ok()) return VllmError(500, "deltawire: " + std::string(MessageOf(proven)));
  return {200, {{"message", "Weight transfer initialized"}}};
}

void VllmStandIn::Sleep(int level) {
  Forbid(session_, "put to sleep in the middle of an update");
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
  row("awake", sleep_level_ == 0);
  row("weights_offloaded", sleep_level_ == 1);
  row("discard_all", sleep_level_ == 2);
  return text;
}

}  // namespace deltawire::testing
