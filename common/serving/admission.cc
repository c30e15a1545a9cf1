#include "common/serving/admission.h"

#include <algorithm>

namespace deltawire {

using std::chrono::duration;
using std::chrono::duration_cast;
using std::chrono::nanoseconds;

uint64_t Admission::Begin(const std::string& model, PullClass who, uint32_t streams, Time now) {
  MutexLock lock(mu_);
  pulls_[next_] = {model, who, streams, now};
  if (who == PullClass::kNewcomer) newcomer_streams_ += streams;
  if (awaited_ > 0) --awaited_;
  return next_++;
}

void Admission::End(uint64_t pull) {
  MutexLock lock(mu_);
  const auto it = pulls_.find(pull);
  if (it == pulls_.end()) return;
  if (it->second.who == PullClass::kNewcomer) newcomer_streams_ -= it->second.streams;
  pulls_.erase(it);
}

void Admission::Expect(const std::string& model, size_t followers, Time now) {
  MutexLock lock(mu_);
  const auto running = std::ranges::count_if(pulls_, [&](const auto& p) {
    return p.second.model == model && p.second.who == PullClass::kFollower;
  });
  expected_ = now + rules_.expected_for;
  awaited_ = followers - std::min(followers, static_cast<size_t>(running));
}

bool Admission::HasPriority(Time now) const {
  if (awaited_ > 0 && now < expected_) return true;
  return std::any_of(pulls_.begin(), pulls_.end(), [&](const auto& p) {
    return p.second.who == PullClass::kFollower && now - p.second.began < rules_.first_for;
  });
}

bool Admission::IsHoldingBack(Time now) const {
  MutexLock lock(mu_);
  return HasPriority(now);
}

void Admission::AddSent(uint64_t bytes, Time now) {
  MutexLock lock(mu_);
  window_bytes_ += bytes;
  if (now - window_began_ < rules_.window) return;
  // A window with a pause does not show the link's speed.
  if (now - window_began_ < 2 * rules_.window) {
    const double seconds = duration<double>(now - window_began_).count();
    best_now_ = std::max(best_now_, static_cast<double>(window_bytes_) / seconds);
  }
  window_began_ = now;
  window_bytes_ = 0;
  if (now - span_began_ < rules_.lately) return;
  best_before_ = now - span_began_ < 2 * rules_.lately ? best_now_ : 0;
  best_now_ = 0;
  span_began_ = now;
}

double Admission::BestRate(Time now) const {
  if (now - span_began_ >= 2 * rules_.lately) return 0;
  return std::max(best_now_, best_before_);
}

double Admission::NewcomersRate(Time now) const { return rules_.newcomers_share * BestRate(now); }

nanoseconds Admission::Take(uint64_t bytes, Time now) {
  MutexLock lock(mu_);
  const double rate = NewcomersRate(now);
  if (rate <= 0 || !HasPriority(now)) {
    free_at_ = now;
    return nanoseconds(0);
  }
  const auto wait = std::max(nanoseconds(0), duration_cast<nanoseconds>(free_at_ - now));
  free_at_ = std::max(free_at_, now) + duration_cast<SteadyClock::duration>(
                                           duration<double>(static_cast<double>(bytes) / rate));
  return wait;
}

size_t Admission::PieceBytes(size_t most, Time now) const {
  constexpr double kLeastPiece = 4096, kTurns = 10;
  MutexLock lock(mu_);
  const double rate = NewcomersRate(now);
  if (rate <= 0 || !HasPriority(now)) return most;
  const double streams = static_cast<double>(std::max<uint64_t>(1, newcomer_streams_));
  const double piece = std::max(kLeastPiece, rate / kTurns / streams);
  return static_cast<size_t>(std::min(piece, static_cast<double>(most)));
}

void Admission::AddWait(const std::string& model, nanoseconds time) {
  MutexLock lock(mu_);
  held_back_[model] += duration<double>(time).count();
}

Admission::Counts Admission::CountsOf(const std::string& model) const {
  MutexLock lock(mu_);
  Counts counts;
  for (const auto& [name, pull] : pulls_) {
    if (pull.model != model) continue;
    ++(pull.who == PullClass::kFollower ? counts.followers : counts.newcomers);
  }
  if (const auto held = held_back_.find(model); held != held_back_.end()) {
    counts.held_back_seconds = held->second;
  }
  return counts;
}

}  // namespace deltawire
