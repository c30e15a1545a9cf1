// What a Replica does for engines: it tells of versions that are ready, and leaves the directory as
// it is while one reads it.
#include "common/base/human.h"
#include "common/base/log.h"
#include "receiver/replica.h"

namespace deltawire::receiver {

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

bool Replica::Hold(const Identity& id, const std::string& reader) {
  std::lock_guard lock(mu_);
  if (stopping_ || changing_ || updates_begun_ > 0) return false;
  if (id.empty() || !(status_.committed == id)) return false;
  holders_.insert(reader);
  return true;
}

void Replica::Release(const std::string& reader) {
  std::lock_guard lock(mu_);
  if (const auto held = holders_.find(reader); held != holders_.end()) holders_.erase(held);
  cv_.notify_all();
}

StatusOr<bool> Replica::BeginUpdate() {
  // Of two files the one that is updated now has no name that engines know.
  const bool named = buffer_->buffers() == 1;
  {
    std::lock_guard lock(mu_);
    if (named && !holders_.empty()) return false;
    updates_begun_ += named ? 1 : 0;
  }
  const auto served = options_.downstream == nullptr ? nullptr : buffer_->InTheWay();
  if (served != nullptr) options_.downstream->MakeWay(*served);
  auto begun = buffer_->BeginUpdate();
  // Another thread may have begun the update that this call could not begin.
  if (served != nullptr) buffer_->Reopen(*served);
  std::lock_guard lock(mu_);
  updates_begun_ -= named ? 1 : 0;
  status_.committed = buffer_->committed();
  return begun;
}

Status Replica::BeginChange() {
  std::unique_lock lock(mu_);
  const auto start = SteadyClock::now();
  std::optional<ReceiverPhase> before;
  Status ended;
  while (!holders_.empty()) {
    if (stopping_ || (paused_ && !round_requested_)) {
      ended = absl::CancelledError("paused");
      break;
    }
    const std::string readers = Holders();
    if (readers != status_.readers) {
      LogDebug("model {}: waiting for {} to have read the weights", options_.model, readers);
    }
    if (!before) {
      before = std::exchange(status_.phase, ReceiverPhase::kWaitingForReader);
      waiting_since_ = start;
    }
    status_.readers = readers;
    cv_.wait(lock);
  }
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

std::string Replica::Holders() const { return fmt::format("{}", fmt::join(holders_, ", ")); }

void Replica::EndChange() {
  std::lock_guard lock(mu_);
  changing_ = false;
  status_.committed = buffer_->committed();
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
