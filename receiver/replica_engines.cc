// What a Replica does for engines: it tells of versions that are ready, and leaves the directory as
// it is while one reads it.
#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "common/base/human.h"
#include "common/base/log.h"
#include "receiver/replica.h"

namespace deltawire::receiver {
namespace {

constexpr std::chrono::hours kLongestWait{1};

}  // namespace

void Replica::OnReady(std::function<void()> listener) {
  {
    std::lock_guard lock(mu_);
    on_ready_ = listener;
  }
  listener();
}

Identity Replica::Ready() const {
  std::lock_guard lock(mu_);
  return ready_;
}

bool Replica::Hold(const Identity& id, const std::string& reader, SteadyClock::time_point until) {
  std::lock_guard lock(mu_);
  // A change waits for the holds of now alone: engines that retry out of step would hold it up for
  // ever. They take the directory again when the change has ended.
  if (stopping_ || changing_ || change_waits_ || updates_begun_ > 0) return false;
  if (id.empty() || !(status_.committed == id)) return false;
  holders_.emplace(reader, until);
  return true;
}

void Replica::Release(const std::string& reader) {
  std::lock_guard lock(mu_);
  if (const auto held = holders_.find(reader); held != holders_.end()) holders_.erase(held);
  cv_.notify_all();
}

void Replica::SetEngines(const EnginesServe& engines) {
  {
    std::lock_guard lock(mu_);
    if (stopping_ || engines_ == engines) return;
    engines_ = engines;
  }
  SendAll();
}

StatusOr<bool> Replica::BeginUpdate() {
  // Of two files the one that is updated now has no name that engines know.
  const bool named = buffer_->buffers() == 1;
  {
    std::lock_guard lock(mu_);
    DropLateHolders();
    if (named && !holders_.empty()) return false;
    updates_begun_ += named ? 1 : 0;
  }
  // Also when an exception ends the call: no engine could hold the directory any more.
  const absl::Cleanup ended = [&] {
    std::lock_guard lock(mu_);
    updates_begun_ -= named ? 1 : 0;
    LookAtBuffer();
  };
  const auto served = options_.downstream == nullptr ? nullptr : buffer_->InTheWay();
  if (served != nullptr) options_.downstream->MakeWay(*served);
  auto begun = buffer_->BeginUpdate();
  // Another thread may have begun the update that this call could not begin.
  if (served != nullptr) buffer_->Reopen(*served);
  return begun;
}

Status Replica::BeginChange() {
  std::unique_lock lock(mu_);
  const auto start = SteadyClock::now();
  std::optional<ReceiverPhase> before;
  Status ended;
  for (DropLateHolders(); !holders_.empty(); DropLateHolders()) {
    if (stopping_ || PauseEndsIt()) {
      ended = absl::CancelledError("paused");
      break;
    }
    change_waits_ = true;
    const std::string readers = Holders();
    if (!before) {
      before = std::exchange(status_.phase, ReceiverPhase::kWaitingForReader);
      waiting_since_ = start;
    }
    if (std::exchange(status_.readers, readers) != readers) {
      LogDebug("model {}: waiting for {} to have read the weights", options_.model, readers);
      lock.unlock();
      answer_listeners_.Call();
      lock.lock();
      continue;
    }
    auto pause = SteadyClock::duration(kLongestWait);
    for (const auto& [reader, until] : holders_) {
      pause = std::min(pause, until - SteadyClock::now());
    }
    cv_.wait_for(lock, std::max(pause, SteadyClock::duration(0)));
  }
  change_waits_ = false;
  if (before) EndWaitForReaders(*before, start);
  changing_ = ended.ok();
  return ended;
}

void Replica::EndWaitForReaders(ReceiverPhase before, SteadyClock::time_point start) {
  const double seconds = SecondsSince(start);
  status_.phase = before;
  status_.readers.clear();
  waiting_since_.reset();
  status_.reader_wait_seconds += seconds;
  readers_waited_ += seconds;
  status_.worst_reader_wait_seconds = std::max(status_.worst_reader_wait_seconds, seconds);
  cv_.notify_all();
}

std::string Replica::Holders() const {
  std::vector<std::string_view> names;
  for (const auto& [name, since] : holders_) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

void Replica::DropLateHolders() {
  const auto now = SteadyClock::now();
  std::erase_if(holders_, [&](const auto& holder) {
    if (holder.second > now) return false;
    LogWarn("model {}: {} has read the weights for too long, and is not waited for any longer",
            options_.model, holder.first);
    return true;
  });
}

void Replica::LookAtBuffer() {
  status_.committed = buffer_->committed();
  const bool changed = buffer_->begun() && !buffer_->last_whole().empty();
  half_updated_ = status_.committed.empty() && (half_updated_ || changed);
}

void Replica::EndChange() {
  std::lock_guard lock(mu_);
  changing_ = false;
  LookAtBuffer();
}

void Replica::HandOver() {
  std::function<void()> listener;
  {
    std::lock_guard lock(mu_);
    ready_ = status_.committed;
    listener = on_ready_;
  }
  if (listener) listener();
}

}  // namespace deltawire::receiver
