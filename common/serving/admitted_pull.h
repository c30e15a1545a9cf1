// One pull's place in the Admission, from Begin to Leave. Streams of a newcomer wait for followers.
// Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "common/net/pull_server.h"
#include "common/serving/admission.h"

namespace deltawire {

class AdmittedPull : public net::Pacing {
 public:
  /// `admission` null: Begin is never called.
  AdmittedPull(std::shared_ptr<Admission> admission, std::string model)
      : admission_(std::move(admission)), model_(std::move(model)) {}
  ~AdmittedPull() override { Leave(); }

  void Begin(PullClass who, uint32_t streams) {
    newcomer_ = who == PullClass::kNewcomer;
    place_ = admission_->Begin(model_, who, streams, SteadyClock::now());
  }
  void Leave() {
    if (const uint64_t place = place_.exchange(0)) admission_->End(place);
  }

  std::chrono::nanoseconds WaitFor(size_t bytes) override {
    return newcomer_ ? admission_->Take(bytes, SteadyClock::now()) : std::chrono::nanoseconds(0);
  }
  bool IsHeldBack() override { return newcomer_ && admission_->IsHoldingBack(SteadyClock::now()); }
  size_t PieceBytes(size_t most) override {
    return newcomer_ ? admission_->PieceBytes(most, SteadyClock::now()) : most;
  }
  void AddWait(std::chrono::nanoseconds time) override { admission_->AddWait(model_, time); }
  void AddSent(uint64_t bytes) override { admission_->AddSent(bytes, SteadyClock::now()); }

 private:
  const std::shared_ptr<Admission> admission_;
  const std::string model_;
  std::atomic<uint64_t> place_{0};  // from Admission::Begin; 0: none
  std::atomic<bool> newcomer_{false};
};

}  // namespace deltawire
