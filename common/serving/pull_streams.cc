#include "common/serving/pull_streams.h"

#include <algorithm>
#include <utility>

namespace deltawire {

Status PullStreams::Reserve(uint16_t stream, uint16_t streams) {
  if (streams != size() || stream >= size() || streams_[stream].state != State::kAwaited) {
    return Errorf(
        StatusCode::kInvalidArgument,
        "stream {} of {} does not belong to this pull of {} streams, or was reserved before",
        stream, streams, size());
  }
  streams_[stream].state = State::kReserved;
  return absl::OkStatus();
}

bool PullStreams::HaveAll(State state) const {
  return std::ranges::all_of(streams_, [&](const Stream& s) { return s.state >= state; });
}

bool PullStreams::HaveOpen() const {
  return std::ranges::any_of(streams_, [](const Stream& s) { return s.state == State::kOpen; });
}

bool PullStreams::IsRead(uint32_t half) const {
  return std::ranges::any_of(streams_, [&](const Stream& s) { return s.reading == half; });
}

PullStreams::Callbacks PullStreams::TakeWakes(const std::function<bool(uint16_t)>& only) {
  Callbacks wakes;
  for (uint16_t i = 0; i < size(); ++i) {
    Stream& s = streams_[i];
    if (s.wake && (!only || only(i))) wakes.push_back(std::exchange(s.wake, nullptr));
  }
  return wakes;
}

PullStreams::Callbacks PullStreams::Cuts() const {
  Callbacks cuts;
  for (const Stream& s : streams_) {
    if (s.state == State::kOpen && s.cut) cuts.push_back(s.cut);
  }
  return cuts;
}

PullStreams::Times PullStreams::times() const {
  Times times;
  for (const Stream& s : streams_) {
    if (const auto first = s.clock.first_frame()) {
      times.first_frame = std::min(*first, times.first_frame.value_or(*first));
    }
    times.longest = std::max(times.longest, s.clock.seconds());
    times.coding += s.clock.coding_seconds();
    times.idle_bytes += s.clock.idle_bytes();
  }
  return times;
}

}  // namespace deltawire
