#include "receiver/replica/upkeep.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/log.h"
#include "common/base/trace.h"

namespace deltawire::receiver {
namespace {

constexpr std::chrono::milliseconds kCheckEvery{1000};
// Tasks that are due soon are done now, or they would wake the processor once more.
constexpr std::chrono::milliseconds kTogether{50};
// The time after a commit at which a relay brings its hidden file up. Before that, served receivers
// need its cores and memory, and the next version seldom comes earlier.
constexpr std::chrono::milliseconds kServeFirst{100};
// Pause before the next attempt to update the hidden file, which a reader may have open.
constexpr std::chrono::milliseconds kCatchUpPause{200};
// The same after an error, such as no room for a fresh file, which may last.
constexpr std::chrono::milliseconds kCatchUpFailedPause{2000};

}  // namespace

bool Upkeep::MayCatchUp(const Situation& s, Time now) const {
  // The catch-up copies from the committed file, so its corrupt chunks must be fetched first.
  return behind_ && !s.paused && !s.prepared && !s.corrupt && now >= catch_up_at_;
}

Upkeep::Choice Upkeep::Next(const Buffer& buffer, const Situation& s, Time now) const {
  Choice choice;
  if (!s.committed) {
    if (s.paused || !LacksSecondFile(buffer)) return choice;
    if (now >= catch_up_at_) return {.task = Task::kMakeSpare};
    return {.again = catch_up_at_};
  }
  if (now + kTogether >= check_at_) return {.task = Task::kCheck};
  choice.again = check_at_;
  if (MayCatchUp(s, catch_up_at_)) {
    if (now >= catch_up_at_) return {.task = Task::kCatchUp};
    choice.again = std::min(choice.again, catch_up_at_);
  }
  // At a high rate a scrub is always due, and a check that callers wait for would never be.
  if (options_.scrub_bytes_per_s == 0 || s.verifying) return choice;
  if (now + kTogether >= scrub_at_) return {.task = Task::kScrub};
  choice.again = std::min(choice.again, scrub_at_);
  return choice;
}

void Upkeep::Run(Task task, Buffer& buffer, PullSink* sink, const std::function<bool()>& stop) {
  const bool changes = task != Task::kScrub;
  const auto use = task == Task::kCheck ? RunState::Use::kUpkeep : RunState::Use::kFollow;
  if (changes && !env_.run.Begin(use)) return;
  switch (task) {
    case Task::kCheck:
      Check(buffer);
      break;
    case Task::kCatchUp:
      CatchUp(buffer, *sink, stop);
      break;
    case Task::kMakeSpare:
      MakeSpare(buffer, stop);
      break;
    case Task::kScrub:
      Scrub(buffer);
      break;
    case Task::kNothing:
      break;
  }
  if (changes) env_.run.End();
}

UpkeepTotals Upkeep::totals() const {
  MutexLock lock(mu_);
  return totals_;
}

void Upkeep::AddCorrupt(const Buffer& buffer, uint32_t chunk) {
  if (!env_.corrupt.Add(chunk)) return;
  const Identity committed = env_.gate.version().committed();
  LogError(
      "model {}: {}: chunk {} of tensor {} has lost its digest: {} (check this machine's memory) "
      "{}",
      options_.model, ToString(committed), chunk,
      buffer.layout().tensor(buffer.chunks()[chunk].tensor).name,
      env_.run.follows() ? "fetching it whole" : "the next sync fetches it whole",
      ToString(TraceOf(committed)));
}

void Upkeep::Check(Buffer& buffer) {
  const StatusOr<BufferHealth> health = CheckFiles(buffer);
  check_at_ = SteadyClock::now() + kCheckEvery;
  // A file that was put back may be another one.
  if (health.ok() && (env_.downstream.serve_again() || !health->put_back.empty())) {
    env_.downstream.Serve(buffer);
  }
  if (health.ok()) env_.downstream.RecheckChunks(health->corrupt_chunks);
  env_.downstream.RecheckChunks(buffer.bases().TakeCorrupt());
  env_.gate.version().NoteVersion(buffer);
  if (!health.ok()) return env_.line.Fail(health.status(), ReplicaLine::Cause::kCheck);
  env_.line.Recover(ReplicaLine::Cause::kCheck);
  for (const std::string& name : health->put_back) {
    LogWarn("model {}: another process removed or changed {}: put back", options_.model, name);
  }
  {
    MutexLock lock(mu_);
    totals_.files_put_back += health->put_back.size();
  }
  if (health->corrupt_chunks.empty()) return;
  env_.corrupt.Count(health->corrupt_chunks.size());
  LogError("model {}: another process changed {} chunks of {}: fetching them whole", options_.model,
           health->corrupt_chunks.size(), buffer.directory().native());
}

void Upkeep::NoteCommit(const Buffer& buffer) {
  NoteBuffer(buffer);
  catch_up_at_ = SteadyClock::now();
  if (options_.serves) catch_up_at_ += kServeFirst;
}

void Upkeep::CatchUp(Buffer& buffer, PullSink& sink, const std::function<bool()>& stop) {
  const std::vector<AppliedDelta> deltas = sink.applied().All();
  auto caught = CatchUpSecondFile(buffer, deltas, stop);
  catch_up_at_ = SteadyClock::now() + (caught.ok() ? kCatchUpPause : kCatchUpFailedPause);
  const StatusCode code = caught.status().code();
  const bool said = std::exchange(catch_up_failed_, code) == code;
  if (!caught.ok()) {
    LogLine(said ? LogLevel::kDebug : LogLevel::kWarn, "model {}: {}", options_.model,
            MessageOf(caught.status()));
    return;
  }
  for (const uint32_t chunk : caught->corrupt_chunks) AddCorrupt(buffer, chunk);
  if (!caught->whole) return;
  behind_ = false;
  sink.applied().Clear();
}

void Upkeep::MakeSpare(Buffer& buffer, const std::function<bool()>& stop) {
  const Status made = MakeSecondFile(buffer, stop);
  if (made.ok()) return;
  catch_up_at_ =
      SteadyClock::now() + (absl::IsCancelled(made) ? kCatchUpPause : kCatchUpFailedPause);
  LogDebug("model {}: {}", options_.model, MessageOf(made));
}

void Upkeep::Scrub(const Buffer& buffer) {
  // A scrub that comes before it is due keeps to the rate, too.
  const Time due = std::max(scrub_at_, SteadyClock::now());
  if (buffer.committed().empty()) {
    scrub_at_ = due + ScrubWalk::kShortest;
    return;
  }
  uint64_t bytes = 0;
  const auto pause =
      scrub_walk_.Next(buffer.chunks(), options_.scrub_bytes_per_s, [&](uint32_t c) -> uint64_t {
        if (!IsIntact(buffer, c)) AddCorrupt(buffer, c);
        bytes += buffer.chunks()[c].bytes;
        return buffer.chunks()[c].bytes;
      });
  scrub_at_ = due + std::chrono::duration_cast<SteadyClock::duration>(pause);
  MutexLock lock(mu_);
  totals_.scrubbed_bytes += bytes;
}

}  // namespace deltawire::receiver
