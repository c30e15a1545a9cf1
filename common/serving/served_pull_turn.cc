// The part of ServedPull that shares the way out with other pulls: which class the pull is of, and
// how long it waits for others.
#include "common/serving/served_pull.h"

namespace deltawire {

PullClass ServedPull::Classify(const Published* end) const {
  const uint64_t unknown = wire::Have::Entry{}.version;
  // Chunks of another lineage, or from before the log, are no base for a delta. A version that is
  // still coming needs no log: only receivers that hold what its deltas begin at are told of it.
  const bool coming = terms_.incoming != nullptr;
  const Identity& to = coming ? terms_.incoming->identity() : end->info.identity;
  const bool known = held_.lineage == to.lineage && (coming || !end->log.empty());
  const uint64_t oldest = !known ? unknown : coming ? 0 : end->log.front()->from().version;
  uint64_t whole = 0;
  for (uint32_t c = 0; c < have_.size(); ++c) {
    if (!model_->owned().contains(c)) continue;
    if (!coming && have_[c].digest == (*end->digests)[c]) continue;
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
