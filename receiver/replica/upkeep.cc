#include "receiver/replica/upkeep.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/human.h"
#include "common/base/log.h"

namespace deltawire::receiver {
namespace {

constexpr std::chrono::milliseconds kCheckEvery{1000};
// Tasks that are due soon are done now, or they would wake the processor once more.
constexpr std::chrono::milliseconds kTogether{50};
// A relay brings its hidden file up so long after a commit: those who are served take what its
// cores and memory have, and the next version seldom comes earlier.
constexpr std::chrono::milliseconds kServeFirst{100};
// Chunks are scrubbed together, since each pause costs a wake-up. A batch takes about a
// millisecond, for which a pull may have to wait.
constexpr uint64_t kBatchBytes = 8 << 20;
constexpr std::chrono::milliseconds kNothingToScrub{500};
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
    if (s.paused || !buffer.lacks_spare()) return choice;
    if (now >= catch_up_at_) return {.task = Task::kMakeSpare};
    return {.again = catch_up_at_};
  }
  if (now + kTogether >= check_at_) return {.task = Task::kCheck};
  choice.again = check_at_;
  if (MayCatchUp(s, catch_up_at_)) {
    if (now >= catch_up_at_) return {.task = Task::kCatchUp};
    choice.again = std::min(choice.again, catch_up_at_);
  }
  // A check that callers wait for must not come after every scrub: at a high rate one is always
  // due.
  if (options_.scrub_bytes_per_s == 0 || s.verifying) return choice;
  if (now + kTogether >= scrub_at_) return {.task = Task::kScrub};
  choice.again = std::min(choice.again, scrub_at_);
  return choice;
}

Upkeep::Outcome Upkeep::Run(Task task, Buffer& buffer, PullSink* sink,
                            const std::function<bool()>& stop) {
  Outcome out;
  switch (task) {
    case Task::kCheck:
      out.health = buffer.Check();
      check_at_ = SteadyClock::now() + kCheckEvery;
      break;
    case Task::kCatchUp:
      CatchUp(buffer, *sink, stop, out);
      break;
    case Task::kMakeSpare:
      MakeSpare(buffer, stop);
      break;
    case Task::kScrub:
      Scrub(buffer, out);
      break;
    case Task::kNothing:
      break;
  }
  return out;
}

void Upkeep::Committed(const Buffer& buffer) {
  Look(buffer);
  catch_up_at_ = SteadyClock::now();
  if (options_.serves) catch_up_at_ += kServeFirst;
}

void Upkeep::CatchUp(Buffer& buffer, PullSink& sink, const std::function<bool()>& stop,
                     Outcome& out) {
  const std::vector<AppliedDelta> deltas = sink.Applied();
  auto caught = buffer.CatchUp(deltas, stop);
  catch_up_at_ = SteadyClock::now() + (caught.ok() ? kCatchUpPause : kCatchUpFailedPause);
  const StatusCode code = caught.status().code();
  const bool said = std::exchange(catch_up_failed_, code) == code;
  if (!caught.ok()) {
    LogLine(said ? LogLevel::kDebug : LogLevel::kWarn, "model {}: {}", options_.model,
            MessageOf(caught.status()));
    return;
  }
  out.corrupt = std::move(caught->lost_chunks);
  if (!caught->whole) return;
  behind_ = false;
  sink.ForgetApplied();
}

void Upkeep::MakeSpare(Buffer& buffer, const std::function<bool()>& stop) {
  const Status made = buffer.MakeSpare(stop);
  if (made.ok()) return;
  catch_up_at_ =
      SteadyClock::now() + (absl::IsCancelled(made) ? kCatchUpPause : kCatchUpFailedPause);
  LogDebug("model {}: {}", options_.model, MessageOf(made));
}

void Upkeep::Scrub(const Buffer& buffer, Outcome& out) {
  // A scrub that comes early keeps to the rate, too.
  const Time due = std::max(scrub_at_, SteadyClock::now());
  const ChunkTable& chunks = buffer.chunks();
  if (buffer.committed().empty() || chunks.size() == 0) {
    scrub_at_ = due + kNothingToScrub;
    return;
  }
  for (uint32_t n = 0; n < chunks.size() && out.scrubbed_bytes < kBatchBytes; ++n) {
    const uint32_t c = scrub_next_++ % chunks.size();
    out.scrubbed_bytes += chunks[c].bytes;
    if (!buffer.Intact(c)) out.corrupt.push_back(c);
  }
  scrub_next_ %= chunks.size();
  scrub_at_ = due + std::chrono::duration_cast<SteadyClock::duration>(
                        TimeAtRate(out.scrubbed_bytes, options_.scrub_bytes_per_s));
}

}  // namespace deltawire::receiver
