#include "receiver/engine/engine_driver.h"

#include <algorithm>

#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/trace.h"

namespace deltawire::receiver {
namespace {

using Clock = SteadyClock;
using std::chrono::milliseconds;

// A probe is a small request.
constexpr milliseconds kProbeLimit{5000};
// A call ends within this time after its limit, so before the directory changes.
constexpr milliseconds kHoldMargin{100};

}  // namespace

EngineDriver::EngineDriver(Settings settings, std::unique_ptr<EngineHook> hook,
                           EngineSource& source, std::function<void(const View&)> served,
                           std::function<void()> called)
    : settings_(std::move(settings)),
      name_(NameOf(settings_.options)),
      reader_("engine " + name_),
      hook_(std::move(hook)),
      source_(source),
      served_(std::move(served)),
      called_(std::move(called)),
      course_(TraitsOf(settings_.options.kind), settings_.policy) {
  thread_ = Thread([this] { Run(); });
}

EngineDriver::~EngineDriver() { Join(); }

void EngineDriver::Join() {
  Stop();
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mu_);
    while (!ended_ && Clock::now() < stop_at_) cv_.wait_for(lock, stop_at_ - Clock::now());
  }
  hook_->Cancel();
  thread_.join();
}

void EngineDriver::Stop() {
  bool at_once = false;
  {
    MutexLock lock(mu_);
    if (stopping_) return;
    stopping_ = true;
    at_once = !course_.in_pause();
    stop_at_ = Clock::now() + (at_once ? milliseconds(0) : kGrace);
    cv_.notify_all();
  }
  if (at_once) hook_->Cancel();
}

void EngineDriver::NoteReady() {
  MutexLock lock(mu_);
  course_.Ready(source_.Ready());
  // The receiver may go on to change the directory as soon as this returns.
  if (!calling_ && !stopping_) {
    const EngineCourse::Action action = course_.Next(Clock::now());
    if (action.call && action.hold) HoldFor(action);
  }
  cv_.notify_all();
}

std::optional<uint64_t> EngineDriver::AskCheck() {
  if (!TraitsOf(settings_.options.kind).checks) return std::nullopt;
  MutexLock lock(mu_);
  cv_.notify_all();
  return course_.AskCheck();
}

EngineDriver::View EngineDriver::view() const {
  MutexLock lock(mu_);
  return MakeView();
}

EngineDriver::View EngineDriver::MakeView() const {
  View view;
  static_cast<EngineCourse::View&>(view) = course_.view();
  view.name = name_;
  view.kind = settings_.options.kind;
  view.served_unix_nanos = view.served.empty() ? 0 : served_unix_nanos_;
  return view;
}

bool EngineDriver::HoldFor(const EngineCourse::Action& action) {
  const bool wanted = action.call && action.hold;
  if (!wanted && std::exchange(holding_, false)) source_.Release(reader_);
  if (wanted && !holding_) {
    hold_end_ = Clock::now() + 2 * settings_.call_limit;
    holding_ = source_.Hold(action.to, reader_, hold_end_ + kHoldMargin);
  }
  return holding_ || !wanted;
}

void EngineDriver::Run() {
  MutexLock lock(mu_);
  while (true) {
    const auto now = Clock::now();
    const EngineCourse::Action action = course_.Next(now);
    if (stopping_ && (!action.call || !course_.in_pause() || now >= stop_at_)) break;
    if (!HoldFor(action)) {
      course_.HoldRefused(now);
      const MutexUnlock unlocked(mu_);
      called_();
    } else if (action.call) {
      Call(action);
    } else if (action.until == Clock::time_point::max()) {
      cv_.wait(lock);
    } else {
      cv_.wait_for(lock, std::max<Clock::duration>(action.until - now, Clock::duration(0)));
    }
  }
  HoldFor({});
  ended_ = true;
  cv_.notify_all();
}

EngineAnswer EngineDriver::Ask(const EngineCourse::Action& action, Clock::time_point hold_end) {
  const EngineCall call = *action.call;
  milliseconds limit = settings_.call_limit;
  if (call == EngineCall::kProbe) limit = std::min(limit, kProbeLimit);
  if (action.hold) {
    limit = std::min(limit, std::chrono::ceil<milliseconds>(hold_end - Clock::now()));
    if (limit.count() <= 0) {
      return {EngineAnswer::Result::kUnsure,
              fmt::format("the engine has read the directory for {} ms, and the receiver waits no "
                          "longer (--engine-timeout-ms is half of it)",
                          2 * settings_.call_limit.count()),
              {}};
    }
  }
  const auto end = Clock::now() + limit;
  EngineAnswer awake;
  if (action.looks) {
    awake = hook_->AskSleep(action.asleep, limit);
    if (!awake.done()) return awake;
    // A call that begins too late fails by itself.
    limit = std::max(std::chrono::ceil<milliseconds>(end - Clock::now()), milliseconds(1));
  }
  EngineAnswer answer = hook_->Make(call, action.to, limit);
  answer.paused = awake.paused;
  return answer;
}

void EngineDriver::Call(const EngineCourse::Action& action) {
  const EngineCall call = *action.call;
  const auto begin = Clock::now();
  if (call != EngineCall::kProbe && !course_.in_attempt() && !action.to.empty()) {
    LogInfo("model {}: engine {}: {} of {} {}", settings_.model.name, name_, ToString(call),
            ToString(action.to), ToString(TraceOf(action.to)));
  }
  course_.Begin(action, begin);
  calling_ = true;
  EngineAnswer answer;
  {
    const auto hold_end = hold_end_;
    const MutexUnlock unlocked(mu_);
    answer = Ask(action, hold_end);
  }
  calling_ = false;
  if (call != EngineCall::kProbe || !answer.done()) {
    LogDebug("model {}: engine {}: {}{} in {}{}{} {}", settings_.model.name, name_, ToString(call),
             action.to.empty() ? "" : " of " + ToString(action.to),
             HumanSeconds(SecondsSince(begin)), answer.why.empty() ? "" : ": ", answer.why,
             ToString(TraceOf(action.to)));
  }
  const EngineCourse::View before = course_.view();
  course_.Done(call, answer, Clock::now());
  const EngineCourse::View after = course_.view();
  LogChange(before, after, action.to);
  const bool updated = after.updates != before.updates;
  const bool serves = !after.served.empty() && !(after.served == before.served);
  if (serves) served_unix_nanos_ = UnixNanos();
  const View now = MakeView();
  const MutexUnlock unlocked(mu_);
  called_();
  if (updated) ReportStages(after);
  if (serves) served_(now);
}

void EngineDriver::ReportStages(const EngineCourse::View& update) const {
  if (!settings_.stages) return;
  const EngineTraits traits = TraitsOf(settings_.options.kind);
  const auto report = [this](Stage stage, double seconds) {
    settings_.stages(
        {stage, seconds, settings_.model.name, name_, ToString(settings_.options.kind)});
  };
  if (traits.prepares) report(Stage::kPrepare, update.last_prepare_seconds);
  if (traits.pauses) report(Stage::kPause, update.last_pause_seconds);
  report(Stage::kLoad, update.last_load_seconds);
}

void EngineDriver::LogChange(const EngineCourse::View& before, const EngineCourse::View& after,
                             const Identity& to) {
  const std::string& model = settings_.model.name;
  if (after.updates != before.updates) {
    LogInfo("model {}: engine {} serves {}{} {}", model, name_, ToString(after.served),
            TraitsOf(settings_.options.kind).pauses
                ? fmt::format(", paused for {}", HumanSeconds(after.last_pause_seconds))
                : "",
            ToString(TraceOf(after.served)));
  }
  // The same failure of the next version is news, its repetition is not.
  const TraceId trace = TraceOf(to);
  const bool failed = after.failures != before.failures && !(trace == failed_);
  if (after.error.empty() || (after.error == before.error && !failed)) return;
  failed_ = trace;
  // A program puts an engine to sleep on purpose, and wakes it.
  const auto level = after.state == EngineState::kAsleep ? LogLevel::kInfo : LogLevel::kWarn;
  LogLine(level, "model {}: engine {}: {}{}; it is {}{}{}", model, name_,
          to.empty() ? "" : fmt::format("{}: ", ToString(to)), after.error, ToString(after.state),
          after.paused ? ", and paused" : "",
          to.empty() ? "" : fmt::format(" {}", ToString(trace)));
}

}  // namespace deltawire::receiver
