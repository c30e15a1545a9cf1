#include "receiver/pull/round_transfers.h"

#include <utility>

namespace deltawire::receiver {
namespace {

Status EndedError() { return absl::CancelledError("the pull was ended"); }

}  // namespace

RoundTransfers::RoundTransfers(size_t agents, std::span<const size_t> awaited)
    : announced_(agents, uint8_t{1}) {
  for (const size_t agent : awaited) announced_[agent] = 0;
}

void RoundTransfers::Cancel() {
  std::vector<Transport> running;
  {
    MutexLock lock(mu_);
    cancelled_ = true;
    running = running_;
    cv_.notify_all();
  }
  for (const Transport& part : running) part->Cancel();
}

void RoundTransfers::Announce(size_t agent) {
  MutexLock lock(mu_);
  announced_[agent] = 1;
  cv_.notify_all();
}

Status RoundTransfers::Begin(std::vector<Transport> parts) {
  MutexLock lock(mu_);
  if (cancelled_) return EndedError();
  running_ = std::move(parts);
  moving_ = running_.size();
  return absl::OkStatus();
}

Status RoundTransfers::Await(size_t agent, std::chrono::milliseconds patience) {
  MutexLock lock(mu_);
  const auto known = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return IsOver() || announced_[agent] != 0;
  };
  while (!known()) {
    cv_.wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return known() || moving_ == 0; });
    // The others have published, so this one is about to, unless it has died.
    const auto until = SteadyClock::now() + patience;
    cv_.wait_until(lock, until,
                   [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return known() || moving_ > 0; });
    if (moving_ == 0) break;
  }
  if (IsOver()) return EndedError();
  if (announced_[agent] == 0) return absl::AbortedError("its agent has not announced it");
  ++moving_;
  return absl::OkStatus();
}

Status RoundTransfers::Add(Transport part) {
  MutexLock lock(mu_);
  if (IsOver()) return EndedError();
  running_.push_back(std::move(part));
  return absl::OkStatus();
}

void RoundTransfers::Leave() {
  MutexLock lock(mu_);
  --moving_;
  cv_.notify_all();
}

void RoundTransfers::EndOthers(size_t agent, const Transport& part) {
  std::vector<Transport> others;
  {
    MutexLock lock(mu_);
    if (broken_) return;
    broken_ = agent;
    others = running_;
    cv_.notify_all();
  }
  std::erase(others, part);
  for (const Transport& other : others) other->Cancel();
}

bool RoundTransfers::EndedByAnother(size_t agent) const {
  MutexLock lock(mu_);
  return broken_ && *broken_ != agent;
}

Status RoundTransfers::End() {
  MutexLock lock(mu_);
  running_.clear();
  return cancelled_ ? EndedError() : absl::OkStatus();
}

}  // namespace deltawire::receiver
