#include "receiver/buffer/buffer_gate.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "common/base/human.h"
#include "common/base/log.h"

namespace deltawire::receiver {
namespace {

constexpr std::chrono::hours kLongestHold{1};
// Finding the readers inspects all processes, so it is done seldom.
constexpr std::chrono::seconds kLookEvery{1};

}  // namespace

bool BufferGate::Hold(const Identity& id, const std::string& reader,
                      SteadyClock::time_point until) {
  MutexLock lock(mu_);
  // A change waits for the holds of now alone: engines that retry out of step would hold it up for
  // ever. They take the directory again when the change has ended.
  if (stopping_ || state_ != State::kOpen || updates_begun_ > 0) return false;
  if (id.empty() || !(version_.committed() == id)) return false;
  holders_.emplace(reader, until);
  return true;
}

void BufferGate::Release(const std::string& reader) {
  MutexLock lock(mu_);
  if (const auto held = holders_.find(reader); held != holders_.end()) holders_.erase(held);
  cv_.notify_all();
}

void BufferGate::SetLimit(Limit limit) {
  limit_ = limit;
  refusal_ = Refusal::kNone;
}

void BufferGate::EndKeepName() {
  Limit keep = Limit::kKeepName;
  limit_.compare_exchange_strong(keep, Limit::kNone);
}

Status BufferGate::Touch(Buffer& buffer) {
  if (limit_ == Limit::kKeepName) {
    return absl::AbortedError(
        "an agent's published part does not fit into the staging, and is pulled when all agents "
        "have published");
  }
  if (limit_ == Limit::kPrepare) DW_RETURN_IF_ERROR(TouchForPrepare(buffer));
  DW_ASSIGN_OR_RETURN(const bool begun, BeginUpdate(buffer));
  if (begun) return absl::OkStatus();
  refusal_ = Refusal::kReader;
  return Errorf(StatusCode::kUnavailable, "{}: another process reads the weights",
                buffer.directory().native());
}

Status BufferGate::TouchForPrepare(Buffer& buffer) {
  const bool named = !buffer.updating() && !buffer.update().begun();
  const bool fresh = !buffer.lease_problem().empty() && !options_.unsafe_in_place;
  if (buffer.buffers() == 2 || !named || fresh) return absl::OkStatus();
  if (options_.copy_for_reader) return buffer.update().BeginInFreshFile();
  refusal_ = Refusal::kCannotPrepare;
  return Errorf(StatusCode::kFailedPrecondition,
                "model \"{}\": it cannot be prepared beside the only weight file, since chunks "
                "come whole or its delta exceeds the staging bound; use buffers = 2, "
                "on-busy-reader = copy or a larger staging",
                options_.model);
}

StatusOr<bool> BufferGate::BeginUpdate(Buffer& buffer) {
  // With two files, engines know no name of the one that is updated now.
  const bool named = buffer.buffers() == 1;
  {
    MutexLock lock(mu_);
    DropLateHolders();
    if (named && !holders_.empty()) return false;
    updates_begun_ += named ? 1 : 0;
  }
  std::shared_ptr<ServedFile> served;
  // An exception, too, must let engines and receivers hold the file again. Another thread may have
  // begun the update that this call could not begin.
  const absl::Cleanup ended = [&] {
    if (served != nullptr) served->EndDrain();
    MutexLock lock(mu_);
    updates_begun_ -= named ? 1 : 0;
    version_.NoteBuffer(buffer);
  };
  if (options_.downstream != nullptr) served = buffer.update().BlockingFile();
  if (served != nullptr) options_.downstream->MakeWay(*served);
  return buffer.update().Begin();
}

Status BufferGate::WaitWritable(Buffer& buffer) {
  const auto start = SteadyClock::now();
  auto look_at = start;
  auto pause = std::chrono::milliseconds(1);
  bool waits = false;
  std::string readers;
  Status ended;
  while (true) {
    const StatusOr<bool> begun = BeginUpdate(buffer);
    ended = begun.status();  // an error, too, ends what was said of the wait
    if (!begun.ok() || *begun) break;
    const auto now = SteadyClock::now();
    const auto waited = now - start;
    if (now >= look_at) {
      {
        MutexLock lock(mu_);
        readers = Holders();
      }
      const bool engines = !readers.empty();  // they read for moments, and have a time limit
      if (!engines) readers = buffer.update().Readers();
      look_at = SteadyClock::now() + kLookEvery;
      LogLine(waits || engines ? LogLevel::kDebug : LogLevel::kInfo,
              "model {}: waiting for {} to close the weights", options_.model, readers);
    }
    if (options_.copy_for_reader && waited >= options_.reader_grace) {
      ended = buffer.update().BeginInFreshFile();
      break;
    }
    MutexLock lock(mu_);
    // Beside a reader that may stay for hours, engines go on reading.
    if (state_ != State::kChanging) state_ = holders_.empty() ? State::kOpen : State::kDraining;
    readers_ = readers;
    if (!std::exchange(waits, true)) {
      waiting_since_ = start;
      const MutexUnlock unlocked(mu_);
      if (news_) news_();
    }
    if (IsInterrupted()) {
      ended = absl::CancelledError("paused");
      break;
    }
    cv_.wait_for(lock, pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
  }
  MutexLock lock(mu_);
  if (state_ != State::kChanging) state_ = State::kOpen;
  version_.NoteBuffer(buffer);
  EndWait();
  return ended;
}

Status BufferGate::BeginChange() {
  MutexLock lock(mu_);
  const auto start = SteadyClock::now();
  Status ended;
  for (DropLateHolders(); !holders_.empty(); DropLateHolders()) {
    if (IsInterrupted()) {
      ended = absl::CancelledError("paused");
      break;
    }
    state_ = State::kDraining;
    if (!waiting_since_) waiting_since_ = start;
    const std::string readers = Holders();
    if (std::exchange(readers_, readers) != readers) {
      LogDebug("model {}: waiting for {} to finish reading the weights", options_.model, readers);
      const MutexUnlock unlocked(mu_);
      if (news_) news_();
      continue;
    }
    auto pause = SteadyClock::duration(kLongestHold);
    for (const auto& [reader, until] : holders_) {
      pause = std::min(pause, until - SteadyClock::now());
    }
    cv_.wait_for(lock, std::max(pause, SteadyClock::duration(0)));
  }
  EndWait();
  state_ = ended.ok() ? State::kChanging : State::kOpen;
  return ended;
}

void BufferGate::EndChange(const Buffer& buffer) {
  MutexLock lock(mu_);
  if (state_ == State::kChanging) state_ = State::kOpen;
  version_.NoteBuffer(buffer);
}

void BufferGate::EndChangeWithoutName() {
  MutexLock lock(mu_);
  state_ = State::kOpen;
  version_.NoteNameLost();
}

void BufferGate::SetYielding(bool yielding) {
  MutexLock lock(mu_);
  yielding_ = yielding;
  cv_.notify_all();
}

void BufferGate::Stop() {
  MutexLock lock(mu_);
  stopping_ = true;
  cv_.notify_all();
}

BufferGate::Waits BufferGate::waits() const {
  MutexLock lock(mu_);
  Waits all{.waiting = waiting_since_.has_value(),
            .readers = readers_,
            .seconds = waited_,
            .worst = worst_wait_,
            .ended_seconds = waited_};
  if (waiting_since_) {  // one long wait is seen before it ends
    const double seconds = SecondsSince(*waiting_since_);
    all.seconds += seconds;
    all.worst = std::max(all.worst, seconds);
  }
  return all;
}

void BufferGate::EndWait() {
  if (!waiting_since_) return;
  const double seconds = SecondsSince(*std::exchange(waiting_since_, std::nullopt));
  readers_.clear();
  waited_ += seconds;
  worst_wait_ = std::max(worst_wait_, seconds);
}

std::string BufferGate::Holders() const {
  std::vector<std::string_view> names;
  for (const auto& [name, since] : holders_) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

void BufferGate::DropLateHolders() {
  const auto now = SteadyClock::now();
  std::erase_if(holders_, [&](const auto& holder) {
    if (holder.second > now) return false;
    LogWarn("model {}: {} has held the weights beyond its time limit; updating them all the same",
            options_.model, holder.first);
    return true;
  });
}

}  // namespace deltawire::receiver
