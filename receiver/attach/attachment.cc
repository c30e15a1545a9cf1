#include "receiver/attach/attachment.h"

#include <algorithm>

#include "receiver/attach/upstream.h"

namespace deltawire::receiver {

Attachment::Need Attachment::NeedAt(Time now) const {
  switch (state_) {
    case State::kDetached:
      return now >= attach_at_ ? Need::kAttach : Need::kNothing;
    case State::kEnding:
      return Need::kNothing;
    case State::kBroken:
      return Need::kDetach;
    case State::kAttaching:
    case State::kAttached:
      break;
  }
  if (now >= heard_at_ + kSilence) return Need::kDetach;
  return now >= BeatAt() ? Need::kBeat : Need::kNothing;
}

Attachment::Time Attachment::NextNeed() const {
  switch (state_) {
    case State::kDetached:
      return attach_at_;
    case State::kEnding:
      return Time::max();
    case State::kBroken:
      return Time();
    case State::kAttaching:
    case State::kAttached:
      break;
  }
  return std::min(heard_at_ + kSilence, BeatAt());
}

Attachment::Time Attachment::BeatAt() const {
  return state_ == State::kAttached ? sent_at_ + kBeat : Time::max();
}

void Attachment::Begin(Time now) {
  state_ = State::kAttaching;
  ++number_;
  heard_at_ = sent_at_ = now;
  last_event_ = 0;
}

Status Attachment::NoteEvent(uint64_t number, Time now) {
  if (state_ != State::kAttaching && state_ != State::kAttached) {
    return absl::CancelledError("not attached");
  }
  if (number != last_event_ + 1) {
    state_ = State::kBroken;
    return Errorf(StatusCode::kDataLoss,
                  "sender {}: event {} came after event {}, so events were lost; attaching again",
                  address_, number, last_event_);
  }
  last_event_ = number;
  heard_at_ = now;
  if (state_ == State::kAttaching) backoff_.Reset();
  state_ = State::kAttached;
  return absl::OkStatus();
}

void Attachment::End() {
  ++number_;
  state_ = State::kEnding;
}

void Attachment::NoteEnd(const Status& why, Time now) {
  state_ = State::kDetached;
  // A sender that runs but does not have the model yet is asked again soon: its trainer may be
  // starting, and a relay's first pull may be about to end.
  constexpr std::chrono::milliseconds kUnregistered{200};
  attach_at_ = now + backoff_.Next(random_, AsksToWait(why) ? kUnregistered : Backoff::kLongest);
}

}  // namespace deltawire::receiver
