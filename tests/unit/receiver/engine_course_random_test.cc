// Thousands of random histories of one engine that refuses, hangs, dies, and applies by halves: it
// is never resumed with weights of no version, and serves the newest once all is well again.
#include <catch2/catch.hpp>
#include <optional>
#include <random>

#include "receiver/engine/engine_course.h"

namespace deltawire::receiver::engine_course_random_test {
namespace {

using std::chrono::milliseconds;
using Result = EngineAnswer::Result;

Identity Version(uint64_t version) { return {Hash128{1, 2}, {1, version}, version, 0}; }

/// The truth about an engine, of which the course only hears. It stands for real ones, as far as
/// the order of calls goes.
struct ModelEngine {
  bool paused = false;
  std::optional<uint64_t> weights;  // none: mixed
  std::optional<uint64_t> held;     // what its client believes the weights to be; none: no client
  std::optional<uint64_t> prepared, applied_from;
  bool prepared_heals = false;
  bool session = false;
  std::string named = "default";  // the version that its answers carry
  bool spoiled = false;           // as vLLM after a reload that raised: no other one heals it
  bool drifted = false;           // its weights are mixed, and nobody was told
  bool heals = false;             // somebody was: the next load heals it
  bool asleep = false;            // vLLM: its memory is given back
  bool heard = false;             // the receiver was told so
  bool deep = false;              // and so are its weights
  bool lost = false;              // and has come again with anything in it: only a reload helps
  uint64_t directory = 0;

  void Restart() {
    *this = {.paused = false,
             .weights = directory,
             .held = {},
             .prepared = {},
             .applied_from = {},
             .prepared_heals = false,
             .session = false,
             .named = "default",
             .spoiled = false,
             .drifted = false,
             .heals = false,
             .asleep = false,
             .heard = false,
             .deep = false,
             .lost = false,
             .directory = directory};
  }

  void Sleep(bool drops) {
    asleep = paused = true;
    heard = false;
    deep = drops;
    if (!drops) return;
    weights.reset();
    lost = true;
    drifted = heals = false;
  }
  void WakeUp() { asleep = paused = false; }

  void Drift() {
    if (!weights || !held) return;
    weights.reset();
    drifted = true;
    heals = false;
  }
  bool FindsDrift() {
    heals = heals || drifted;
    return std::exchange(drifted, false);
  }

  /// Does `call`, whole; false: refuses.
  bool Do(EngineCall call, const EngineTraits& traits, uint64_t to) {
    switch (call) {
      case EngineCall::kProbe:
        return true;
      case EngineCall::kClear:
        return std::exchange(session, false);
      case EngineCall::kPrepare:
        if (traits.sessions && (session || !held)) return false;
        if (!traits.sessions && !held) {
          if (weights != directory) return false;
          held = weights;
        }
        // The client adds differences to what it believes is there.
        CHECK((!weights || held == weights || held == directory));
        session = true;
        prepared = directory;
        prepared_heals = heals;
        applied_from.reset();
        return true;
      case EngineCall::kAttach:
        if (weights != directory) return false;
        held = weights;
        return true;
      case EngineCall::kDetach:
        held.reset();
        return !session;
      case EngineCall::kPause:
        paused = true;
        return true;
      case EngineCall::kReload:
        CHECK_FALSE((traits.sessions && held));
        held.reset();
        drifted = heals = lost = false;
        weights = spoiled ? std::nullopt : std::optional(directory);
        if (!traits.sessions) named = std::to_string(to);
        return true;
      case EngineCall::kLoad:
        if (!traits.prepares) {
          lost = false;
          weights = spoiled ? std::nullopt : std::optional(directory);
          if (!traits.names) named = std::to_string(to);
          return true;
        }
        if (!session || prepared != to) return false;
        applied_from = weights;
        weights = held = prepared;
        heals = heals && !prepared_heals;
        if (drifted || heals || lost) weights.reset();
        if (!traits.sessions) named = std::to_string(to);
        return true;
      case EngineCall::kRollback:
        if (!session || !applied_from) return false;
        weights = held = applied_from;
        applied_from.reset();
        if (!traits.sessions) named = std::to_string(to);
        return true;
      case EngineCall::kProve:
        return weights == to;
      case EngineCall::kCheck:
        CHECK((!traits.sessions || (session && prepared == directory && held == directory)));
        return true;
      case EngineCall::kResume:
        paused = false;
        return true;
      case EngineCall::kFinish:
        named = std::to_string(to);
        return std::exchange(session, false);
      case EngineCall::kName:
        named = std::to_string(to);
        return true;
      case EngineCall::kFlush:
        return true;
    }
    return false;
  }
};

struct History {
  History(uint64_t seed, EngineKind k, EngineFailure what)
      : kind(k),
        failure(what),
        traits(TraitsOf(k)),
        random(seed),
        course(traits,
               {.failure = failure, .retries = static_cast<uint32_t>(random() % 4), .seed = seed}) {
    // The receiver may have died at any point of an update.
    engine.directory = 1;
    engine.paused = random() % 2 == 0;
    if (random() % 2 == 0) engine.weights = 1;
    if (engine.weights && random() % 2 == 0) engine.held = 1;
    engine.session = traits.sessions && random() % 2 == 0;
  }

  bool Chance(unsigned percent) { return random() % 100 < percent; }

  EngineAnswer Answer(const EngineCourse::Action& action, unsigned faults) {
    const EngineCall call = *action.call;
    if (engine.asleep) {
      if (call != EngineCall::kClear) {
        engine.heard = true;
        return {
            .result = Result::kAsleep, .why = "it sleeps", .version = {}, .dropped = engine.deep};
      }
    }
    const uint64_t to = action.to.id.version;
    const auto done = [&] {
      EngineAnswer answer;
      const bool looks = call == EngineCall::kPrepare || call == EngineCall::kCheck;
      if (looks && traits.checks && engine.held && engine.FindsDrift()) {
        return EngineAnswer{
            .result = Result::kRefused, .why = "drifted", .version = {}, .drifted = true};
      }
      if (!engine.Do(call, traits, to)) answer = {Result::kRefused, "refused", {}};
      if (call == EngineCall::kProbe) answer.version = engine.named;
      return answer;
    };
    if (!Chance(faults)) return done();
    const bool changes = call == EngineCall::kLoad || call == EngineCall::kReload;
    switch (random() % 5) {
      case 0:
        engine.Restart();
        return {Result::kUnreachable, "refused", {}};
      case 1:
        (void)done();
        return {Result::kUnsure, "cut after it was done", {}};
      case 2:
        // Some ranks have, some have not.
        if (changes) engine.weights.reset();
        return {Result::kUnsure, "cut in the middle", {}};
      case 3:
        if (changes) engine.weights.reset(), engine.session = engine.session && Chance(50);
        if (call == EngineCall::kReload || (changes && !traits.prepares)) {
          engine.spoiled = traits.reload_spoils;
        }
        if (call == EngineCall::kClear) engine.session = false;  // its refusal says that none is
        return {Result::kRefused, "500 in the middle", {}};
      default:
        return {Result::kUnsure, "cut before", {}};
    }
  }

  /// Makes what is due now, and the next calls up to `limit`.
  void Run(unsigned faults, int limit) {
    while (limit-- > 0) {
      const auto action = course.Next(now);
      if (!action.call) {
        if (action.until == EngineCourse::Time::max()) return;
        now = action.until;
        continue;
      }
      if (action.hold && action.to.id.version != engine.directory) {
        course.HoldRefused(now);
        continue;
      }
      const bool drifts = failure == EngineFailure::kRetry || failure == EngineFailure::kRollback;
      if (traits.checks && drifts && faults > 0 && Chance(5)) engine.Drift();
      if (faults > 0 && Chance(10)) course.AskCheck();
      // It is put to sleep between two updates, and wakes when that was noticed.
      const bool vllm = kind == EngineKind::kVllm || kind == EngineKind::kVllmReload;
      const bool may_sleep = vllm && !engine.asleep && !engine.spoiled && !course.in_attempt();
      if (may_sleep && faults > 0 && Chance(5)) engine.Sleep(Chance(50));
      if (engine.asleep && engine.heard && (faults == 0 || Chance(30))) engine.WakeUp();
      if (*action.call == EngineCall::kResume) {
        CHECK((engine.weights || engine.drifted || engine.heals || !engine.paused));
      }
      course.Begin(action, now);
      now += milliseconds(1);
      course.Done(*action.call, Answer(action, faults), now);
      const auto view = course.view();
      // Where the refusal for drift was cut, the course does not know of it, and the next load
      // heals.
      const bool unheard = engine.drifted || engine.heals;
      if (traits.pauses && !view.served.empty() && !course.in_pause() && !unheard &&
          !engine.asleep) {
        CHECK(engine.weights == view.served.id.version);
      }
    }
  }
  void Publish() { course.Ready(Version(++engine.directory)); }

  const EngineKind kind;
  const EngineFailure failure;
  const EngineTraits traits;
  std::mt19937_64 random;
  EngineCourse course;
  EngineCourse::Time now{std::chrono::hours(1)};
  ModelEngine engine;
};

}  // namespace

TEST_CASE("random histories: no engine resumes with mixed weights, and each serves in the end") {
  for (const EngineKind kind : {EngineKind::kVllm, EngineKind::kVllmReload, EngineKind::kSglang,
                                EngineKind::kSglangReload}) {
    for (const EngineFailure failure : {EngineFailure::kRetry, EngineFailure::kRollback,
                                        EngineFailure::kStayPaused, EngineFailure::kTakeOut}) {
      for (uint64_t seed = 1; seed <= 300; ++seed) {
        CAPTURE(ToString(kind), ToString(failure), seed);
        History history(seed, kind, failure);
        for (int version = 0; version < 8; ++version) {
          history.Publish();
          history.Run(25, static_cast<int>(history.random() % 40));
        }
        history.Run(0, 100);
        CHECK_FALSE((history.traits.sessions && history.engine.session));
        if (failure == EngineFailure::kTakeOut) {
          // Known to have started anew by what it names, unless that is the same as before.
          if (history.course.view().state != EngineState::kOut) continue;
          if (history.engine.named == "default") continue;
          history.engine.Restart();
          history.Run(0, 100);
        }
        history.Publish();
        history.Run(0, 100);
        if (history.engine.spoiled) {
          CHECK(history.engine.paused);
          if (history.engine.named == "default") continue;
          history.engine.Restart();
          history.Run(0, 100);
        }
        const auto view = history.course.view();
        CAPTURE(view.error, ToString(view.state));
        CHECK(view.served == Version(history.engine.directory));
        CHECK(history.engine.weights == history.engine.directory);
        CHECK_FALSE(history.engine.paused);
      }
    }
  }
}

}  // namespace deltawire::receiver::engine_course_random_test
