// States of a Model other than the newest, for pulls that must end at one of several agents'
// choosing.
#include <algorithm>

#include "sender/model.h"

namespace deltawire::sender {

StatusOr<std::shared_ptr<const Published>> Model::At(StateId id) {
  std::lock_guard lock(mu_);
  if (published_ == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "model \"{}\": nothing is published yet", name_);
  }
  if (published_->info.id == id) return published_;
  if (published_->info.id < id) {
    return Errorf(StatusCode::kAborted,
                  "model \"{}\": {} is not published here, the newest is {}; pull again", name_,
                  ToString(id), ToString(published_->info.id));
  }
  std::erase_if(earlier_, [](const auto& e) { return e.second.expired(); });
  // Pulls of several receivers share one state, and with it what was coded for them.
  if (const auto it = earlier_.find(id); it != earlier_.end()) {
    if (auto known = it->second.lock()) return known;
  }
  std::shared_ptr<const Published> state = Rebuild(id);
  if (state == nullptr) {
    return Errorf(StatusCode::kAborted,
                  "model \"{}\": {} is not kept any more, the newest is {}; pull a newer one",
                  name_, ToString(id), ToString(published_->info.id));
  }
  earlier_[id] = state;
  return state;
}

std::shared_ptr<Published> Model::Rebuild(StateId id) const {
  const Published& now = *published_;
  const uint32_t other = 1 - now.half;
  const bool other_holds = state_.phase(other) == SlotPhase::kWhole && state_.id(other) == id;
  auto state = MakeState(id, other);
  state->info.model_bytes = owned_bytes_;
  state->info.elements = elements_;
  const bool reaches = !now.log.empty() && now.log.back()->to() == now.info.id;
  const auto next = std::find_if(now.log.begin(), now.log.end(),
                                 [&](const auto& delta) { return delta->from() == id; });
  if (reaches && next != now.log.end()) {
    auto digests = std::make_shared<std::vector<uint64_t>>(*now.digests);
    for (auto it = now.log.end(); it != next;) {
      for (const ChunkDelta& d : (*--it)->chunks()) (*digests)[d.chunk] = d.digest_before;
    }
    state->digests = std::move(digests);
    state->log.assign(now.log.begin(), next);
    return state;
  }
  // After a restart the log is empty, but the other half may still be that state.
  if (!other_holds || phase_ != OffloadPhase::kIdle) return nullptr;
  auto digests = std::make_shared<std::vector<uint64_t>>(chunks_.size());
  for (uint32_t c = 0; c < chunks_.size(); ++c) (*digests)[c] = state_.chunk_digest(other, c);
  state->digests = std::move(digests);
  return state;
}

std::shared_ptr<const void> Model::LeaseHalf(uint32_t half, StateId id) {
  std::lock_guard lock(mu_);
  if (published_ == nullptr) return nullptr;
  if (half == published_->half) {
    return published_->info.id == id ? LeaseLocked(half) : nullptr;
  }
  const bool holds = phase_ == OffloadPhase::kIdle && state_.phase(half) == SlotPhase::kWhole &&
                     state_.id(half) == id;
  return holds ? LeaseLocked(half) : nullptr;
}

}  // namespace deltawire::sender
