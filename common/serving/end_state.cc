#include "common/serving/end_state.h"

#include <utility>

namespace deltawire {

EndState::EndState(StateSource& model, std::shared_ptr<const Published> pinned)
    : model_(model), pinned_(std::move(pinned)) {
  if (pinned_ != nullptr) pin_ = model_.store().Pin(pinned_);
}

EndState::Use EndState::Judge(const std::shared_ptr<const Published>& state) {
  if (pinned_ != nullptr) return state == pinned_ ? Use::kMake : Use::kOld;
  if (first_ == nullptr) SetFirst(state);
  if (state == first_) return Use::kMake;
  // Another stream may have seen a newer state between our lease and our lock.
  return state->serial < first_serial_ ? Use::kOld : Use::kOver;
}

void EndState::Pin(const std::shared_ptr<const Published>& state) {
  pin_ = model_.store().Pin(state);
  pinned_ = state;
  first_ = nullptr;  // so that its log is not kept until the end of the pull
  StopNeedingWayBack();
}

void EndState::SetFirst(std::shared_ptr<const Published> state) {
  first_serial_ = state->serial;
  if (pinned_ == nullptr) first_ = std::move(state);
}

void EndState::Name(const Identity& end, uint64_t side_files_hash) {
  auto state = std::make_shared<Published>();
  state->info.identity = end;
  state->info.side_files_hash = side_files_hash;
  pinned_ = std::move(state);
}

void EndState::Overtake(const Published& newest) {
  // The pull is about to pin a state whose half may be overwritten, so the model must keep the way
  // back to it.
  if (first_ == nullptr || newest.serial <= first_serial_) return;
  if (!std::exchange(needs_way_back_, true)) model_.CountPull(1);
}

void EndState::StopNeedingWayBack() {
  if (std::exchange(needs_way_back_, false)) model_.CountPull(-1);
}

}  // namespace deltawire
