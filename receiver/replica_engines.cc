// What a Replica does for engines: it tells of versions that are ready, and leaves the directory as
// it is while one reads it.
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
  if (stopping_ || changing_ || id.empty() || !(status_.committed == id)) return false;
  holders_.insert(reader);
  return true;
}

void Replica::Release(const std::string& reader) {
  std::lock_guard lock(mu_);
  if (const auto held = holders_.find(reader); held != holders_.end()) holders_.erase(held);
  cv_.notify_all();
}

StatusOr<bool> Replica::BeginUpdate() {
  bool changing = false;
  {
    std::lock_guard lock(mu_);
    changing = changing_;
    // Of two files the one that is updated now has no name that engines know.
    if (buffer_->buffers() == 1) {
      if (!holders_.empty()) return false;
      changing_ = true;
    }
  }
  auto begun = buffer_->BeginUpdate();
  std::lock_guard lock(mu_);
  changing_ = changing;
  status_.committed = buffer_->committed();
  return begun;
}

Status Replica::BeginChange() {
  std::unique_lock lock(mu_);
  const ReceiverPhase before = status_.phase;
  while (!holders_.empty()) {
    if (stopping_ || (paused_ && !round_requested_)) return absl::CancelledError("paused");
    const std::string readers = Holders();
    if (readers != status_.readers) {
      LogDebug("model {}: waiting for {} to have read the weights", options_.model, readers);
    }
    status_.phase = ReceiverPhase::kWaitingForReader;
    status_.readers = readers;
    cv_.wait(lock);
  }
  status_.phase = before;
  status_.readers.clear();
  changing_ = true;
  return absl::OkStatus();
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
