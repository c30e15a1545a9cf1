#include "tests/support/engine_stand_in.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tests/support/stand_in_server.h"
#include "tests/support/stand_in_sglang.h"
#include "tests/support/stand_in_vllm.h"

namespace deltawire::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Kind = EngineStandIn::Fault::Kind;
using Loads = StandInContract::Loads;

std::string TextOf(const Json& body) {
  if (body.is_string()) return body.get<std::string>();
  return body.is_null() ? "" : body.dump();
}

}  // namespace

/// Requests go through the faults that are set to the contract, one at a time.
struct EngineStandIn::Impl {
  Impl(Api api, fs::path directory) {
    if (api == Api::kVllm) {
      auto made = std::make_unique<VllmStandIn>(std::move(directory));
      vllm = made.get();
      contract = std::move(made);
    } else {
      contract = std::make_unique<SglangStandIn>(std::move(directory));
    }
    contract->stall = [this] { Stall(); };
  }

  StandInReply Reply(const StandInRequest& request);
  StandInAnswer Handle(const StandInRequest& request, const StandInTarget& target, Loads loads);
  std::optional<Fault> TakeFault(const std::string& path);
  /// Called with mu held by Reply; a caller of GoOn takes it meanwhile.
  void Stall();

  mutable std::mutex mu;  // over all that follows but the server
  std::condition_variable cv;
  std::unique_ptr<StandInContract> contract;
  VllmStandIn* vllm = nullptr;  // the same; null: SGLang's
  std::map<std::string, Fault> faults;
  std::vector<std::string> calls;
  bool going_on = false, stalled = false;
  std::string key;  // that requests must show; empty: none
  StandInServer server{[this](const StandInRequest& request) { return Reply(request); }};
};

void EngineStandIn::Impl::Stall() {
  std::unique_lock lock(mu, std::adopt_lock);
  stalled = true;
  cv.notify_all();
  cv.wait(lock, [this] { return going_on; });
  stalled = going_on = false;
  lock.release();
}

std::optional<EngineStandIn::Fault> EngineStandIn::Impl::TakeFault(const std::string& path) {
  const auto found = faults.find(path);
  if (found == faults.end() || found->second.times == 0) return std::nullopt;
  --found->second.times;
  return found->second;
}

StandInAnswer EngineStandIn::Impl::Handle(const StandInRequest& request,
                                          const StandInTarget& target, Loads loads) {
  if (!request.post) return contract->Get(target);
  Json body = Json::object();
  if (!request.body.empty()) {
    if (request.content_type != "application/json") return Unprocessable("json");
    body = Json::parse(request.body, nullptr, false);
    if (!body.is_object()) return Unprocessable("body");
  }
  return contract->Post(target, body, loads);
}

StandInReply EngineStandIn::Impl::Reply(const StandInRequest& request) {
  using How = StandInReply::How;
  const StandInTarget target = ParseTarget(request.target);
  std::lock_guard lock(mu);
  if (request.post) calls.push_back(target.path);
  const std::optional<Fault> fault = TakeFault(target.path);
  cv.notify_all();
  if (!key.empty() && request.authorization != "Bearer " + key) {
    return {How::kAnswer, 401, R"({"error": "Unauthorized"})"};
  }
  if (fault && fault->kind == Kind::kHang) return {.how = How::kHang};
  if (fault && fault->kind == Kind::kCut) return {.how = How::kCut};
  if (fault && fault->kind == Kind::kRaise) contract->EndSession();
  if (fault && (fault->kind == Kind::kAnswer || fault->kind == Kind::kRaise)) {
    return {How::kAnswer, fault->code, fault->body};
  }
  const bool torn = fault && fault->kind == Kind::kTorn;
  const bool stalls = fault && fault->kind == Kind::kStall;
  const StandInAnswer answer = Handle(request, target,
                                      torn     ? Loads::kTorn
                                      : stalls ? Loads::kStalls
                                               : Loads::kWell);
  if (fault && fault->kind == Kind::kCutDone) return {.how = How::kCut};
  if (fault && fault->kind == Kind::kGarbage) {
    return {How::kAnswer, answer.code, "<html>It works!</html>"};
  }
  return {How::kAnswer, answer.code, TextOf(answer.body)};
}

EngineStandIn::EngineStandIn(Api api, fs::path directory)
    : impl_(std::make_unique<Impl>(api, std::move(directory))) {}

EngineStandIn::~EngineStandIn() { Stop(); }

void EngineStandIn::Start() {
  {
    std::lock_guard lock(impl_->mu);
    impl_->faults.clear();
    impl_->contract->Start();
  }
  impl_->server.Start();
}

void EngineStandIn::Stop() {
  if (!impl_->server.started()) return;
  GoOn();
  impl_->server.Stop();
}

std::string EngineStandIn::url() const { return impl_->server.url(); }

void EngineStandIn::SpeakTls(const std::string& certificate, const std::string& key) {
  impl_->server.SpeakTls(certificate, key);
}

void EngineStandIn::WantKey(const std::string& key) {
  std::lock_guard lock(impl_->mu);
  impl_->key = key;
}

void EngineStandIn::Sleep(int level) {
  std::lock_guard lock(impl_->mu);
  impl_->vllm->Sleep(level);
}

void EngineStandIn::WakeUp(const std::string& tags) {
  std::lock_guard lock(impl_->mu);
  impl_->vllm->WakeUp(tags);
}

void EngineStandIn::Pause() {
  std::lock_guard lock(impl_->mu);
  impl_->contract->paused = true;
}

uint64_t EngineStandIn::probes() const {
  std::lock_guard lock(impl_->mu);
  return impl_->vllm->probes();
}

void EngineStandIn::LackEncoderReset() {
  std::lock_guard lock(impl_->mu);
  impl_->vllm->LackEncoderReset();
}

int EngineStandIn::aborted() const {
  std::lock_guard lock(impl_->mu);
  return impl_->contract->aborted;
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
  return impl_->contract->paused;
}

std::string EngineStandIn::weight_version() const {
  std::lock_guard lock(impl_->mu);
  return impl_->contract->version;
}

void EngineStandIn::Corrupt(size_t byte) {
  std::lock_guard lock(impl_->mu);
  impl_->contract->weights.Corrupt(byte);
}

std::vector<std::byte> EngineStandIn::weights() const {
  std::lock_guard lock(impl_->mu);
  return impl_->contract->weights.whole() ? impl_->contract->weights.all()
                                          : std::vector<std::byte>();
}

std::vector<std::string> EngineStandIn::violations() const {
  std::lock_guard lock(impl_->mu);
  return impl_->contract->wrong;
}

}  // namespace deltawire::testing
