// A ServedPull's turn beside other pulls: who it counts as, and how long it waits for others.
#include "common/serving/served_pull.h"

namespace deltawire {

PullClass ServedPull::Classify(const Published& now) const {
  const uint64_t unknown = wire::Have::Entry{}.version;
  // A version that no delta leads from, or another lineage's, is no base.
  const bool known = !now.log.empty() && held_.lineage == now.info.identity.lineage;
  const uint64_t oldest = known ? now.log.front()->from().version : unknown;
  uint64_t whole = 0;
  for (uint32_t c = 0; c < have_.size(); ++c) {
    if (!model_->owned().contains(c) || have_[c].digest == (*now.digests)[c]) continue;
    const bool base = have_[c].version != unknown && have_[c].version >= oldest;
    if (!base) whole += model_->chunks()[c].bytes;
  }
  return ClassOf(whole, model_->owned_bytes());
}

void ServedPull::LeaveAdmission() {
  if (const uint64_t name = admitted_.exchange(0)) terms_.admission->End(name);
}

std::chrono::nanoseconds ServedPull::AwaitOthers(size_t bytes) {
  if (!newcomer_) return {};
  return terms_.admission->Take(bytes, SteadyClock::now());
}

bool ServedPull::held_back() { return newcomer_ && terms_.admission->first(SteadyClock::now()); }

size_t ServedPull::PieceBytes(size_t most) {
  return newcomer_ ? terms_.admission->PieceBytes(most, SteadyClock::now()) : most;
}

void ServedPull::HeldBack(std::chrono::nanoseconds time) {
  terms_.admission->Waited(model_->name(), time);
}

void ServedPull::Moved(uint64_t bytes) {
  if (terms_.admission != nullptr) terms_.admission->Sent(bytes, SteadyClock::now());
}

}  // namespace deltawire
