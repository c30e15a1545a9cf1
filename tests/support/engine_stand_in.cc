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
using std::chrono::milliseconds;

std::string TextOf(const Json& body) {
  if (body.is_string()) return body.get<std::string>();
  return body.is_null() ? "" : body.dump();
}

}  // namespace

/// Requests go through the faults that are set to the contract: those of an engine's workers one
/// after the other, the rest whenever they come, as in servers whose HTTP and engine are two.
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
    contract->others = [this] { return LetOthers(milliseconds(1)); };
  }

  StandInReply Reply(const StandInRequest& request);
  StandInAnswer Handle(const StandInRequest& request, const StandInTarget& target, const Json& body,
                       Loads loads);
  std::optional<Fault> TakeFault(const std::string& path);
  /// Called with mu held by Reply; a caller of GoOn takes it meanwhile.
  void Stall();
  /// Waits, while others have the lock. False: the server ends.
  bool LetOthers(milliseconds time);

  mutable std::mutex mu;  // over all that follows but the server
  std::condition_variable cv;
  std::unique_ptr<StandInContract> contract;
  VllmStandIn* vllm = nullptr;  // the same; null: SGLang's
  std::map<std::string, Fault> faults;
  std::vector<std::string> calls;
  bool going_on = false, stalled = false, ending = false;
  uint64_t turn = 0, next_turn = 0;  // of the calls that wait for each other
  std::string key;                   // that requests must show; empty: none
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

bool EngineStandIn::Impl::LetOthers(milliseconds time) {
  std::unique_lock lock(mu, std::adopt_lock);
  cv.wait_for(lock, time, [this] { return ending; });
  lock.release();
  return !ending;
}

StandInAnswer EngineStandIn::Impl::Handle(const StandInRequest& request,
                                          const StandInTarget& target, const Json& body,
                                          Loads loads) {
  if (!request.post) return contract->Get(target);
  if (!request.body.empty()) {
    if (request.content_type != "application/json") return Unprocessable("json");
    if (!body.is_object()) return Unprocessable("body");
  }
  return contract->Post(target, body, loads);
}

StandInReply EngineStandIn::Impl::Reply(const StandInRequest& request) {
  using How = StandInReply::How;
  const StandInTarget target = ParseTarget(request.target);
  Json body = Json::object();
  if (!request.body.empty()) body = Json::parse(request.body, nullptr, false);
  const std::string name = contract->NameOf(target, body);
  std::unique_lock lock(mu);
  const bool turns = request.post && contract->TakesTurns(name);
  const uint64_t mine = turns ? next_turn++ : 0;
  if (request.post) calls.push_back(name);
  const std::optional<Fault> fault = TakeFault(name);
  cv.notify_all();
  if (turns) cv.wait(lock, [&] { return ending || turn == mine; });
  const auto end_turn = [&](StandInReply reply) {
    turn += turns ? 1 : 0;
    cv.notify_all();
    return reply;
  };
  if (ending) return end_turn({.how = How::kCut});
  if (!key.empty() && request.authorization != "Bearer " + key) {
    return end_turn({How::kAnswer, 401, R"({"error": "Unauthorized"})"});
  }
  const auto is = [&](Kind kind) { return fault && fault->kind == kind; };
  if (is(Kind::kHang)) return end_turn({.how = How::kHang});
  if (is(Kind::kCut)) return end_turn({.how = How::kCut});
  if (is(Kind::kAnswer)) return end_turn({How::kAnswer, fault->code, fault->body});
  if (is(Kind::kRaise)) {
    const StandInAnswer answer = contract->Refusal(body, fault->code, fault->body);
    return end_turn({How::kAnswer, answer.code, TextOf(answer.body)});
  }
  if (is(Kind::kSlow)) {
    const auto end = std::chrono::steady_clock::now() + fault->takes;
    while (std::chrono::steady_clock::now() < end && !ending) {
      lock.release();
      (void)LetOthers(milliseconds(1));
      lock = std::unique_lock(mu, std::adopt_lock);
    }
  }
  const Loads loads = is(Kind::kTorn)    ? Loads::kTorn
                      : is(Kind::kStall) ? Loads::kStalls
                                         : Loads::kWell;
  const StandInAnswer answer = Handle(request, target, body, loads);
  if (is(Kind::kCutDone)) return end_turn({.how = How::kCut});
  if (is(Kind::kGarbage)) return end_turn({How::kAnswer, answer.code, "<html>It works!</html>"});
  return end_turn({How::kAnswer, answer.code, TextOf(answer.body)});
}

EngineStandIn::EngineStandIn(Api api, fs::path directory)
    : impl_(std::make_unique<Impl>(api, std::move(directory))) {}

EngineStandIn::~EngineStandIn() { Stop(); }

void EngineStandIn::Start() {
  {
    std::lock_guard lock(impl_->mu);
    impl_->faults.clear();
    impl_->ending = false;
    impl_->turn = impl_->next_turn = 0;
    impl_->contract->Start();
  }
  impl_->server.Start();
}

void EngineStandIn::Stop() {
  if (!impl_->server.started()) return;
  GoOn();
  {
    std::lock_guard lock(impl_->mu);
    impl_->ending = true;
    impl_->cv.notify_all();
  }
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

void EngineStandIn::LackPlugin() {
  std::lock_guard lock(impl_->mu);
  impl_->vllm->LackPlugin();
}

void EngineStandIn::FailForeignCall() {
  std::lock_guard lock(impl_->mu);
  impl_->vllm->FailForeignCall();
}

void EngineStandIn::SetRequestTime(milliseconds time) {
  std::lock_guard lock(impl_->mu);
  impl_->contract->request_time = time;
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
