#include "receiver/engine/engine_facts.h"

namespace deltawire::receiver {

bool EngineFacts::Wants(const Identity& target) const {
  if (process.spoiled && !traits_.prepares) return false;  // it has no kAttach that would prove it
  return !target.empty() && !process.out && !(known.served == target) &&
         !(known.given_up == target);
}

EngineCall EngineFacts::FirstCall(bool of_check) const {
  if (traits_.asks && known.unknown) return EngineCall::kAsk;
  if (of_check) return EngineCall::kCheck;
  if (traits_.prepares && !ReadsAlways() && !ReadsAnew()) return EngineCall::kPrepare;
  return traits_.pauses ? EngineCall::kPause : EngineCall::kLoad;
}

bool EngineFacts::StaysPaused(EngineFailure failure) const {
  const bool given_up = !known.given_up.empty() && failure != EngineFailure::kRetry;
  return process.out || (process.paused && (process.spoiled || given_up));
}

void EngineFacts::Learn(EngineCall call, const EngineAnswer& answer) {
  const bool attached = call == EngineCall::kAttach;
  const bool compared = attached || call == EngineCall::kProve || call == EngineCall::kCheck;
  if (compared) {
    known.verified = true;
    process.doubtful = false;
  }
  if (compared || call == EngineCall::kSample) process.unproven = false;
  if (call == EngineCall::kLoad) process.unproven = true;
  if (call == EngineCall::kPause) process.pause_lost = false;
  if (attached) process.spoiled = process.doubted = dropped = false;
  if (call == EngineCall::kReload && known.reload_only) ++known.reloads;
  if (attached || call == EngineCall::kPrepare) known.only_anew = known.reload_only = false;
  if (!known.reload_only) {
    known.why_reload.clear();
    known.reloads = 0;
  }
  if (call == EngineCall::kAsk) {
    known.unknown = false;
    if (!answer.held.empty() && !(answer.held == known.served)) known.served = {};
  }
  // By itself it knows what it is, also where a receiver has died in the middle of a load.
  const bool tells = attached || call == EngineCall::kAsk || call == EngineCall::kPrepare;
  const bool trusted = !process.doubtful && !process.unproven && !dropped;
  if (tells && !answer.held.empty() && trusted) known.weights = answer.held;
}

void EngineFacts::Doubt(EngineCall call, const EngineAnswer& answer, const Identity& before) {
  if (call != EngineCall::kLoad && call != EngineCall::kReload) return;
  if (answer.corrupts) {
    process.corrupts = true;
    known.weights = before;
    return;
  }
  known.verified = false;
  process.doubtful = true;
  const bool reads = call == EngineCall::kReload || !traits_.prepares;
  if (!traits_.reload_spoils || !reads) return;
  const bool provable = traits_.asks && !known.reload_only;
  if (answer.result == EngineAnswer::Result::kRefused || !provable) {
    process.spoiled = true;
  } else {
    process.doubted = true;
  }
}

void EngineFacts::Drift() {
  // It serves none of the versions, and no rollback may lead back to this state.
  known.served = known.weights = {};
  known.verified = false;
  process.doubtful = true;
}

void EngineFacts::Forget(bool same) {
  known = {};
  if (!same) process = {};
}

}  // namespace deltawire::receiver
