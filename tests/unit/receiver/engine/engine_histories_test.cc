// Seeded histories of one engine of 2 to 4 ranks and the course that brings it to each version:
// refusals, answers that are lost, come late or are of two calls, deaths, restarts at the same
// port, receivers that end, sleep, and other people's calls. `served` is never said for other
// bytes, no step comes before the one that has to come first, and no engine is left paused by an
// answer that was lost. With planted bugs, which must be found.
#include <catch2/catch.hpp>
#include <deque>
#include <functional>
#include <optional>
#include <random>

#include "receiver/engine/engine_course.h"
#include "receiver/engine/plugin_call.h"
#include "tests/unit/receiver/engine/ranks_stand_in.h"

namespace deltawire::receiver::engine_histories_test {
namespace {

using std::chrono::milliseconds;
using Result = EngineAnswer::Result;
using Json = RanksStandIn::Json;
using What = RanksStandIn::Trouble::What;

enum class Plant : uint8_t {
  kNone,
  kNoNonce,        ///< the replies of rank 0 are believed, whatever call they are of
  kLostIsDone,     ///< a reload whose answer was lost spoils nothing
  kLostIsRefused,  ///< an answer that was lost counts as a refusal
  kNoProof,        ///< a proof is said to be had, and is not asked for
  kNoQuestion,     ///< an engine is not asked what it holds, and is thought to be attached
  kRaises,         ///< a refusal raises on every rank, and the replies are believed
  kFirstRank,      ///< a reload that one rank has failed is said to be done
  kByNumber,       ///< a version is known by its number alone
};

/// What a history must never come to.
struct Broken {
  std::string what;
};
void Expect(bool holds, const std::string& what) {
  if (!holds) throw Broken{what};
}

/// What may happen to an engine beside what it is asked.
struct Climate {
  unsigned transport = 0;  ///< percent of calls whose answer is lost, late or of two calls
  unsigned trouble = 0;    ///< percent of calls that a rank refuses, or worse
  unsigned events = 0;     ///< percent of calls before which something else happens
  bool refusals = false;   ///< all trouble is a refusal
};

struct History {
  History(uint64_t seed, EngineKind k, EngineFailure what, Plant p, uint32_t retries)
      : kind(k), failure(what), plant(p), most_retries(retries), random(seed) {
    engine.emplace(2 + random() % 3, seed);
    engine->directory = 1;
    engine->Start();
    NewReceiver();
  }

  bool Chance(unsigned percent) { return random() % 100 < percent; }
  bool plugin() const { return kind == EngineKind::kVllm; }
  EngineTraits Traits() const {
    EngineTraits traits = TraitsOf(kind);
    if (plant == Plant::kLostIsDone) traits.reload_spoils = false;
    return traits;
  }
  void NewReceiver() {
    course.emplace(Traits(), EngineCourse::Policy{
                                 .failure = failure, .retries = most_retries, .seed = random()});
    course->Ready(VersionOf(engine->directory));
    disturbed = true;
    holding = false;
  }
  void Publish() { course->Ready(VersionOf(++engine->directory)); }
  /// The trainer begins anew, and its first version has the number of the last one before.
  void PublishAnew() {
    engine->directory += kNumbers;
    course->Ready(VersionOf(engine->directory));
  }

  /// The engine's own answer to `call`, wholly done.
  EngineAnswer Do(EngineCall call, const Identity& to, const RanksStandIn::Trouble& trouble) {
    RanksStandIn& e = *engine;
    const EngineAnswer silent{Result::kUnsure, "nothing within the limit", {}};
    EngineAnswer answer;
    if (plugin() && IsPluginCall(call)) {
      if (plant == Plant::kNoProof && (call == EngineCall::kSample || call == EngineCall::kProve)) {
        return answer;
      }
      const std::string nonce = fmt::format("{:016x}", ++calls);
      const bool by_number = plant == Plant::kByNumber && e.held() % kNumbers == to.id.version;
      const Identity meant = by_number ? VersionOf(e.held()) : to;
      const Json body = PluginBody(call, meant, {}, {"m", "/m"}, nonce, 1);
      auto reply = e.CallPlugin(body["kwargs"], trouble);
      if (!reply) return silent;
      if (reply->raised) return {Result::kUnsure, "500", {}};
      if (plant == Plant::kNoNonce || plant == Plant::kRaises) Believe(reply->results, nonce);
      if (plant == Plant::kFirstRank && call == EngineCall::kReload) {
        for (Json& result : reply->results) result["ok"] = true;
      }
      const bool denied = !reply->results.empty() && reply->results[0].contains("ok") &&
                          !reply->results[0].value("ok", true);
      if (plant == Plant::kRaises && denied) {
        e.FailForeignCall(/*last_alone=*/false);
        return {Result::kRefused, "500", {}};
      }
      if (plant == Plant::kByNumber) {
        for (Json& result : reply->results) NameByNumber(result, to);
      }
      const auto word = ReadPluginWord(reply->results, nonce);
      return word ? JudgeWord(*word, call, to) : OutOfStep();
    }
    switch (call) {
      case EngineCall::kProbe:
        answer.version = e.named;
        answer.paused = e.paused;
        return answer;
      case EngineCall::kPause:
        answer.paused = e.paused;
        e.Pause();
        return answer;
      case EngineCall::kResume:
        e.Resume();
        return answer;
      case EngineCall::kName:
        e.named = VersionName(to);
        return answer;
      case EngineCall::kLoad: {
        const auto reply = e.ReloadWeights(trouble);
        if (!reply) return silent;
        if (reply->raised) return {Result::kRefused, "500", {}};
        for (const Json& result : reply->results) {
          if (!result.is_null() && plant != Plant::kNoNonce) return OutOfStep();
        }
        return answer;
      }
      default:
        return answer;
    }
  }
  /// Turns a reply into one that a client reads that knows only numbers.
  static void NameByNumber(Json& result, const Identity& to) {
    if (!result.is_object() || !result.contains("held") || !result["held"].is_object()) return;
    Json& held = result["held"];
    if (held.value("version", uint64_t{0}) != to.id.version) return;
    held["epoch"] = to.id.epoch;
    held["root"] = fmt::format("{:016x}", to.root);
  }
  /// What a client without nonces would make of replies.
  void Believe(Json& results, const std::string& nonce) const {
    for (size_t rank = 0; rank < results.size(); ++rank) {
      if (!results[rank].is_object()) {
        results[rank] = results[0].is_object() ? results[0] : Json::object();
      }
      results[rank]["nonce"] = nonce;
      results[rank]["rank"] = rank;
      results[rank]["ranks"] = results.size();
    }
  }

  EngineAnswer Answer(const EngineCourse::Action& action, const Climate& climate) {
    const EngineCall call = *action.call;
    while (!late.empty()) {  // an engine takes what it is asked in its order
      const auto before = std::move(late.front());
      late.pop_front();
      before();
    }
    if (down) {
      heard_down = true;
      EngineAnswer answer{Result::kUnreachable, "connect: Connection refused", {}};
      answer.gone = true;
      return answer;
    }
    if (const bool looks = call == EngineCall::kProbe || call == EngineCall::kAsk ||
                           call == EngineCall::kPrepare || call == EngineCall::kAttach ||
                           call == EngineCall::kPause || call == EngineCall::kCheck;
        engine->asleep && looks) {
      heard = true;
      EngineAnswer answer{Result::kAsleep, "it sleeps", {}};
      answer.dropped = engine->dropped;
      return answer;
    }
    if (plant == Plant::kNoQuestion && call == EngineCall::kAsk) {
      disturbed = false;
      EngineAnswer answer;
      answer.held = VersionOf(engine->directory);
      return answer;
    }
    RanksStandIn::Trouble trouble;
    if (Chance(climate.trouble)) {
      const unsigned kinds = climate.refusals ? 1 : 3;
      trouble = {random() % engine->ranks(), static_cast<What>(1 + random() % kinds)};
      // A plain reload has nothing by which a lie would be found.
      if (!plugin() && trouble.what == What::kLies) trouble.what = What::kTears;
    }
    const uint64_t order = engine->refused_order;
    const bool paused = engine->paused;  // as it was asked just before
    EngineAnswer answer = Transport(call, action.to, trouble, climate);
    if (call == EngineCall::kPause) answer.paused = paused;
    if (call == EngineCall::kAsk && answer.done()) disturbed = false;
    if (answer.result != Result::kDone) disturbed = true;
    // A refusal because of what was before is nobody's fault only if something was in between.
    Expect(order == engine->refused_order || disturbed_before,
           fmt::format("{} before what has to come first: {}", ToString(call), answer.why));
    Expect(!(answer.done() && plugin() && IsPluginCall(call) && engine->unread()),
           fmt::format("an answer to {} is believed, out of step", ToString(call)));
    if (call == EngineCall::kProbe && answer.done()) unseen = false;
    if (!answer.process.empty()) unseen = false;
    if (plant == Plant::kLostIsRefused && answer.result == Result::kUnsure) {
      answer.result = Result::kRefused;
      answer.out_of_step = false;
    }
    return answer;
  }

  EngineAnswer Transport(EngineCall call, const Identity& to, const RanksStandIn::Trouble& trouble,
                         const Climate& climate) {
    disturbed_before = disturbed;
    if (!Chance(climate.transport)) return Do(call, to, trouble);
    disturbed = disturbed_before = true;
    const auto lost = [](const char* why) { return EngineAnswer{Result::kUnsure, why, {}}; };
    switch (random() % 5) {
      case 0:
        return lost("cut before it was done");
      case 1:
        (void)Do(call, to, trouble);
        return lost("504 after it was done");
      case 2:
        late.push_back([this, call, to, trouble, process = starts] {
          if (process == starts && !down) (void)Do(call, to, trouble);
        });
        return lost("cut, and done later");
      case 3:  // a gateway has sent it twice
        // Of a plain vLLM whose first reload raised, nobody can know it then.
        if (!plugin() && trouble.what == What::kTears) return lost("cut before it was done");
        (void)Do(call, to, trouble);
        return Do(call, to, {});
      default: {  // no connection, and the process is the same
        EngineAnswer answer{Result::kUnreachable, "connect: nothing within 5000 ms", {}};
        return answer;
      }
    }
  }

  /// Another process is in the engine's place.
  void Restart() {
    down = false;
    ++starts;
    late.clear();
    engine->Start();
    unseen = disturbed = true;
    before_restart = course->view().served;
  }
  /// Something that nobody has asked the course about.
  void Event() {
    RanksStandIn& e = *engine;
    const bool rests = !course->in_attempt() && !down && !e.asleep;
    disturbed = true;
    switch (random() % 8) {
      case 0:
        down = true;
        heard_down = false;
        return;
      case 1:  // restarted between two looks
        if (!course->in_pause() && !down) Restart();
        return;
      case 2:
        if (!late.empty() || course->in_pause()) return;
        NewReceiver();
        return;
      case 3:  // a receiver is killed, and the next one knows nothing
        NewReceiver();
        return;
      case 4:
        if (!rests || !late.empty() || e.spoiled || course->view().state == EngineState::kOut)
          return;
        // A plain vLLM has no nonces. Its pause tells the next receiver of replies out of step, and
        // the sleep would end it.
        if (!plugin() && e.unread()) return;
        e.Sleep(Chance(50) ? 1 : 2);
        heard = false;
        return;
      case 5:
        if (!down) e.FailForeignCall(Chance(50));
        return;
      case 6:
        if (plugin() && rests && !late.size()) e.FlipBit();
        return;
      default:
        if (holding) return;
        if (Chance(70)) {
          Publish();
        } else {
          PublishAnew();
        }
        return;
    }
  }

  /// Makes what is due, up to `limit` calls.
  void Run(const Climate& climate, int limit) {
    while (limit-- > 0) {
      const auto action = course->Next(now);
      if (!action.call) {
        holding = false;
        if (action.until == EngineCourse::Time::max()) return;
        now = action.until;
        // Between two calls of a pause no process starts, unless the second one waits.
        if (climate.events > 0 && !down && course->in_pause() && Chance(10)) Restart();
        continue;
      }
      if (action.hold && !holding && !(action.to == VersionOf(engine->directory))) {
        course->HoldRefused(now);
        continue;
      }
      holding = action.hold;
      if (climate.events > 0 && Chance(climate.events)) {
        Event();
        continue;  // what was due may be due no more
      }
      if (down && heard_down && climate.events > 0 && Chance(50)) Restart();
      if (engine->asleep && heard && (climate.events == 0 || Chance(30))) engine->WakeUp();
      course->Begin(action, now);
      now += milliseconds(1);
      const EngineAnswer answer = Answer(action, climate);
      course->Done(*action.call, answer, now);
      Check();
    }
  }

  void Check() {
    const auto view = course->view();
    Expect(engine->wrong.empty(), engine->wrong.empty() ? "" : engine->wrong.front());
    // What happens behind everybody's back is known when it was looked for.
    if (view.served.empty() || course->in_pause() || down || engine->asleep) return;
    if (unseen && (!plugin() || view.served == before_restart)) return;
    if (engine->ailing() || !late.empty()) return;
    // A plain vLLM that again and again names another version is not asked about it any more.
    if (!plugin() && engine->named != VersionName(view.served)) return;
    Expect(
        VersionOf(engine->whole()) == view.served,
        fmt::format("it is said to serve {} and has {}", ToString(view.served), engine->whole()));
  }

  const EngineKind kind;
  const EngineFailure failure;
  const Plant plant;
  const uint32_t most_retries;
  std::mt19937_64 random;
  std::optional<RanksStandIn> engine;
  std::optional<EngineCourse> course;
  EngineCourse::Time now{std::chrono::hours(1)};
  std::deque<std::function<void()>> late;
  uint64_t calls = 0, starts = 0;
  bool down = false, heard_down = false, heard = false, holding = false;
  bool unseen = false;      // it has started anew, and was not heard since
  Identity before_restart;  // what it was said to serve then
  /// Something has happened since the engine was last asked what it holds.
  bool disturbed = true, disturbed_before = true;
};

/// A history in which anything happens, and all is well in the end.
void Anything(uint64_t seed, EngineKind kind, EngineFailure failure, Plant plant) {
  History h(seed, kind, failure, plant, static_cast<uint32_t>(seed % 4));
  const Climate foul{.transport = 15, .trouble = 10, .events = 6};
  for (int version = 0; version < 6; ++version) {
    while (h.holding) h.Run(foul, 1);  // nobody changes what an engine reads
    h.Publish();
    h.Run(foul, static_cast<int>(h.random() % 50));
  }
  if (h.down) h.Run({}, 5);
  if (h.down) h.Restart();
  h.late.clear();
  h.Run({}, 150);
  Expect(!h.holding, "it still reads");
  h.Publish();
  h.Run({}, 150);
  // Whoever says that only another process helps, gets one.
  const auto left = h.course->view();
  const bool blocked = h.engine->blocked();
  const bool out = left.state == EngineState::kOut || left.state == EngineState::kPaused;
  Expect(!out || left.served.empty(), "served, and left out or paused");
  const bool says_so = left.error.find("start the engine anew") != std::string::npos;
  if (out || blocked || says_so || h.engine->spoiled) {
    h.down = true;
    h.Run({}, 5);
    h.Restart();
    h.Run({}, 150);
  }
  const auto view = h.course->view();
  const std::string last = fmt::format("{} ({}), after {} ({})", ToString(view.state), view.error,
                                       ToString(left.state), left.error);
  Expect(view.served == VersionOf(h.engine->directory), "it does not serve the newest: " + last);
  Expect(h.engine->whole() == h.engine->directory, "it has not the newest: " + last);
  Expect(!h.engine->paused, "it stays paused: " + last);
}

/// A history in which nothing is refused, and answers get lost: no policy leaves it paused.
void LostAnswers(uint64_t seed, EngineFailure failure, Plant plant) {
  History h(seed, EngineKind::kVllm, failure, plant, 30);
  for (int version = 0; version < 4; ++version) {
    while (h.holding) h.Run({}, 1);
    h.Publish();
    h.Run({.transport = 30}, 15 + static_cast<int>(h.random() % 40));
    h.Run({}, 100);
    const auto view = h.course->view();
    const std::string last = fmt::format("{} ({})", ToString(view.state), view.error);
    Expect(!h.engine->paused, "a lost answer leaves it paused: " + last);
    const bool before = failure == EngineFailure::kRollback;  // one that was taken back stays so
    Expect(before || view.served == VersionOf(h.engine->directory), "it is behind: " + last);
    Expect(h.engine->whole() != RanksStandIn::kNothing, "it has no version: " + last);
  }
}

/// A history of an engine that must not be told to read the directory: refusals pass, and lost
/// answers and receivers that end with them, without another process.
void PassingRefusals(uint64_t seed, EngineFailure failure, Plant plant) {
  History h(seed, EngineKind::kVllm, failure, plant, static_cast<uint32_t>(seed % 4));
  h.engine->corrupts = true;
  h.Run({}, 100);
  for (int version = 0; version < 6; ++version) {
    while (h.holding) h.Run({}, 1);
    if (h.Chance(20)) h.NewReceiver();
    h.Publish();
    h.Run({.transport = 10, .trouble = 25, .refusals = true}, static_cast<int>(h.random() % 50));
  }
  h.late.clear();
  h.Run({}, 150);
  h.Publish();
  h.Run({}, 150);
  const auto view = h.course->view();
  const std::string last = fmt::format("{} ({})", ToString(view.state), view.error);
  if (view.state == EngineState::kOut) return;  // as the policy has it
  Expect(view.served == VersionOf(h.engine->directory), "it does not serve the newest: " + last);
  Expect(!h.engine->paused, "it stays paused: " + last);
}

constexpr EngineFailure kFailures[] = {EngineFailure::kRetry, EngineFailure::kRollback,
                                       EngineFailure::kStayPaused, EngineFailure::kTakeOut};

/// The history of this seed; what it comes to, or "".
std::string One(uint64_t seed, Plant plant) {
  const EngineFailure failure = kFailures[seed / 6 % 4];
  try {
    if (seed % 6 == 0) {
      PassingRefusals(seed, failure, plant);
    } else if (seed % 3 == 0) {
      LostAnswers(seed, failure, plant);
    } else {
      Anything(seed, seed % 3 == 1 ? EngineKind::kVllm : EngineKind::kVllmReload, failure, plant);
    }
  } catch (const Broken& broken) {
    return fmt::format("{}, {}: {}", seed % 3 == 2 ? "vllm-reload" : "vllm", ToString(failure),
                       broken.what);
  }
  return "";
}

void All(uint64_t histories) {
  int broken = 0;
  for (uint64_t seed = 1; seed <= histories && broken < 20; ++seed) {
    CAPTURE(seed);
    const std::string what = One(seed, Plant::kNone);
    broken += what.empty() ? 0 : 1;
    CHECK(what == "");
  }
}

}  // namespace

TEST_CASE("histories: an engine of several ranks serves what is said, and is left in no pause") {
  All(1000);
}

TEST_CASE("10,000 histories of an engine of several ranks", "[.long]") { All(10'000); }

TEST_CASE("histories: planted bugs are found") {
  const std::pair<Plant, std::string> plants[] = {
      {Plant::kNoNonce, "replies that are another call's are believed"},
      {Plant::kLostIsDone, "a reload whose answer was lost spoils nothing"},
      {Plant::kLostIsRefused, "an answer that was lost is taken for a refusal"},
      {Plant::kNoProof, "a proof is not asked for"},
      {Plant::kNoQuestion, "an engine is not asked what it holds"},
      {Plant::kRaises, "a refusal raises on every rank"},
      {Plant::kFirstRank, "a reload that one rank has failed is done"},
      {Plant::kByNumber, "a version is known by its number alone"}};
  for (const auto& [plant, what] : plants) {
    CAPTURE(what);
    uint64_t seed = 1;
    while (seed <= 10'000 && One(seed, plant).empty()) ++seed;
    CHECK(seed <= 10'000);
  }
}

}  // namespace deltawire::receiver::engine_histories_test
