#include "tests/support/stand_in_sglang.h"

namespace deltawire::testing {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kScheme = "deltawire:";

StandInAnswer Sglang(bool success, std::string_view message) {
  return {success ? 200 : 400, {{"success", success}, {"message", message}}};
}

}  // namespace

void SglangStandIn::Start() {
  before_.reset();
  StandInContract::Start();
}

StandInAnswer SglangStandIn::Get(const StandInTarget& target) {
  if (target.path != "/model_info") return {405, {{"detail", "Method Not Allowed"}}};
  return {200, {{"weight_version", version}}};
}

// "deltawire:DIRECTORY?version=N[&prepare|&rollback]", as python/deltawire/engine/sglang.py.
Status SglangStandIn::Order(const std::string& path, bool prepare_only) {
  const StandInTarget order = ParseTarget(path.substr(kScheme.size()));
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
    if (!before_ || before_->id.version != wanted) {
      return absl::FailedPreconditionError("deltawire: a rollback leads to nothing");
    }
    before_.reset();
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
  before_ = held;
  return {};
}

StandInAnswer SglangStandIn::Update(const std::string& path, const Json& body, Loads loads) {
  Status updated;
  const bool flush = body.value("flush_cache", true);
  if (path.starts_with(kScheme)) {
    // The plug-in asks before it writes; SGLang itself would write, and fail at the flush.
    if (flush && running > 0) return Sglang(false, "deltawire: requests are running");
    updated = Order(path, false);
  } else {
    before_.reset();
    weights.Detach();
    updated = path == weights.directory() ? Load(loads) : absl::NotFoundError("no such path");
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

StandInAnswer SglangStandIn::Post(const StandInTarget& target, const Json& body, Loads loads) {
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
    return Update(body["model_path"], body, loads);
  }
  return {404, {{"detail", "Not Found"}}};
}

}  // namespace deltawire::testing
