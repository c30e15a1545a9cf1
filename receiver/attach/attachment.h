// One attachment to an upstream, as a state machine. It says when to attach, when to send a beat,
// and when to detach because the upstream fell silent or an event was lost. Pure: a function of
// events and time. An AttachmentKeeper drives it under its lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <string>

#include "common/base/backoff.h"
#include "common/base/status.h"
#include "common/base/sync.h"

namespace deltawire::receiver {

class Attachment {
 public:
  using Time = SteadyClock::time_point;
  /// Each end of an attachment sends something at least this often.
  static constexpr std::chrono::milliseconds kBeat{1000};
  /// An end that has received nothing for this long ends the attachment.
  static constexpr std::chrono::milliseconds kSilence{3000};

  /// kDetached -> kAttaching (Begin) -> kAttached (the first event) -> kEnding (End) -> kDetached
  /// (NoteEnd). An event out of sequence leads from kAttaching or kAttached to kBroken, and End
  /// from each of the three to kEnding.
  enum class State : uint8_t { kDetached, kAttaching, kAttached, kBroken, kEnding };
  enum class Need : uint8_t { kNothing, kAttach, kBeat, kDetach };

  /// `seed` is that of the random part of the pauses between attempts.
  Attachment(std::string address, uint64_t seed) : address_(std::move(address)), random_(seed) {}

  /// kDetach: the upstream has been silent for kSilence, or the attachment is kBroken.
  Need NeedAt(Time now) const;
  /// Returns when it will next need something, if no event comes before.
  Time NextNeed() const;
  State state() const { return state_; }
  /// Increases with each attachment and each end, so that a late call for an earlier attachment is
  /// recognized.
  uint64_t number() const { return number_; }
  /// The number of the last event of this attachment, or 0.
  uint64_t last_event() const { return last_event_; }

  /// Begins a new attachment. REQUIRES: kDetached.
  void Begin(Time now);
  /// Notes an event of this attachment. Returns kDataLoss if events before it were lost, and
  /// kCancelled if the attachment has ended.
  Status NoteEvent(uint64_t number, Time now);
  void NoteSent(Time now) { sent_at_ = now; }
  /// Ends the attachment. No new one begins until NoteEnd. REQUIRES: not kDetached or kEnding.
  void End();
  /// Lets the next attempt come after a pause that depends on `why`.
  void NoteEnd(const Status& why, Time now);

 private:
  /// No report is sent before the first event.
  Time BeatAt() const;

  std::string address_;
  State state_ = State::kDetached;
  uint64_t number_ = 0;
  uint64_t last_event_ = 0;
  Time heard_at_{}, sent_at_{}, attach_at_{};
  Backoff backoff_;
  std::mt19937_64 random_;
};

}  // namespace deltawire::receiver
