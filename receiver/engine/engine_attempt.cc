#include "receiver/engine/engine_attempt.h"

namespace deltawire::receiver {

const Identity& EngineAttempt::subject() const {
  const bool back =
      step == EngineCall::kRollback || step == EngineCall::kProve || step == EngineCall::kName;
  return back ? goal() : to;
}

bool EngineAttempt::Holds(EngineCall call, const EngineTraits& traits) const {
  switch (call) {
    case EngineCall::kPrepare:
    case EngineCall::kAttach:
    case EngineCall::kReload:
    case EngineCall::kCheck:
      return true;
    case EngineCall::kPause:
      // After a pause the engine reads the directory, unless it stays paused.
      return !Aims(Aim::kCondemn) && (!traits.prepares || reloading);
    case EngineCall::kLoad:
      return !traits.prepares;
    default:
      return false;
  }
}

bool EngineAttempt::Looks(EngineCall call) const {
  switch (call) {
    case EngineCall::kAttach:
    case EngineCall::kPrepare:
      return !step || !reading;
    case EngineCall::kProbe:
    case EngineCall::kAsk:
    case EngineCall::kPause:
    case EngineCall::kCheck:
      return true;
    default:
      return false;
  }
}

std::optional<EngineCall> EngineAttempt::After(EngineCall call, const EngineTraits& traits,
                                               bool follows, bool doubtful) const {
  switch (call) {
    case EngineCall::kAsk:
      if (Aims(Aim::kCheck)) return EngineCall::kCheck;
      return reloading ? EngineCall::kPause : EngineCall::kPrepare;
    case EngineCall::kPrepare:
      return reloaded ? EngineCall::kLoad : EngineCall::kPause;
    case EngineCall::kAttach:
      // It has compared all that a reload has brought.
      return reloaded ? After(EngineCall::kLoad, traits, follows, doubtful) : EngineCall::kPrepare;
    case EngineCall::kPause:
      return reloading ? EngineCall::kReload : EngineCall::kLoad;
    case EngineCall::kReload:
      if (!follows) return After(EngineCall::kLoad, traits, follows, doubtful);
      return traits.asks ? EngineCall::kAttach : EngineCall::kPrepare;
    case EngineCall::kRollback:
      return traits.names ? EngineCall::kName : EngineCall::kResume;
    case EngineCall::kLoad:
      if (traits.flushes) return EngineCall::kFlush;
      [[fallthrough]];
    case EngineCall::kFlush:
      if (traits.asks && prepared) return doubtful ? EngineCall::kProve : EngineCall::kSample;
      [[fallthrough]];
    case EngineCall::kSample:
    case EngineCall::kProve:
      if (traits.names) return EngineCall::kName;
      [[fallthrough]];
    case EngineCall::kName:
      if (traits.pauses) return EngineCall::kResume;
      [[fallthrough]];
    case EngineCall::kResume:
    case EngineCall::kCheck:
    case EngineCall::kClear:
    case EngineCall::kProbe:
      return std::nullopt;
  }
  return std::nullopt;
}

void EngineAttempt::Begin(EngineCall call, bool paused, Time now) {
  confirms = confirms && call == EngineCall::kAsk;
  step = call;
  call_began = now;
  unasked = false;
  was_paused = paused;
  const bool keeps = call == EngineCall::kAttach || call == EngineCall::kPrepare;
  reading = call == EngineCall::kReload || (reading && keeps);
}

void EngineAttempt::Done(EngineCall call) {
  if (call == EngineCall::kPrepare) prepared = true;
  if (call == EngineCall::kReload) reloaded = true;
}

void EngineAttempt::AddTime(EngineCall call, Time now) {
  const double seconds = std::chrono::duration<double>(now - call_began).count();
  switch (call) {
    case EngineCall::kAsk:
    case EngineCall::kPrepare:
    case EngineCall::kAttach:
      prepare_seconds += seconds;
      return;
    case EngineCall::kReload:
    case EngineCall::kLoad:
    case EngineCall::kFlush:
    case EngineCall::kSample:
    case EngineCall::kName:
      load_seconds += seconds;
      return;
    default:
      return;
  }
}

void EngineAttempt::Undo(EngineCall call, bool again, const std::string& why) {
  aim = Aim::kUndo;
  repeats = again;
  why_undone = why;
  step = call;
}

}  // namespace deltawire::receiver
