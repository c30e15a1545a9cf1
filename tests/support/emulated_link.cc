#include "tests/support/emulated_link.h"

#include <algorithm>
#include <cstring>

namespace deltawire::test {

EmulatedLink::EmulatedLink(const LinkOptions& options, uint64_t seed)
    : options_(options), random_(seed) {}

bool EmulatedLink::Happens(double share) {
  return share > 0 && static_cast<double>(random_() >> 11) * 0x1p-53 < share;
}

int64_t EmulatedLink::SendingNs(size_t bytes) const {
  if (options_.bits_per_s == 0) return 0;
  return static_cast<int64_t>(static_cast<double>(bytes) * 8e9 /
                              static_cast<double>(options_.bits_per_s));
}

EmulatedLink::OnTheWay EmulatedLink::Copy(Packet packet, int64_t due_ns) {
  if (free_.empty()) {
    memory_.push_back(std::make_unique<uint8_t[]>(options_.mtu));
    free_.push_back(memory_.back().get());
  }
  uint8_t* bytes = free_.back();
  free_.pop_back();
  std::memcpy(bytes, packet.data(), packet.size());
  return {due_ns, number_++, bytes, packet.size()};
}

void EmulatedLink::Offer(Packet packet, int64_t now_ns) {
  ++counters_.packets_in;
  counters_.bytes_in += packet.size();
  if (cut_) {
    ++counters_.cut;
    return;
  }
  const int64_t waiting_ns = std::max<int64_t>(0, busy_until_ns_ - now_ns);
  if (waiting_ns > 0 && waiting_ns + SendingNs(packet.size()) > SendingNs(options_.queue_bytes)) {
    ++counters_.queue_full;
    return;
  }
  busy_until_ns_ = now_ns + waiting_ns + SendingNs(packet.size());
  // Drawn for each packet, so that one share does not change what happens by another.
  const bool lost = Happens(options_.loss), late = Happens(options_.reorder),
             twice = Happens(options_.duplicate);
  if (lost) {
    ++counters_.lost;
    return;
  }
  const int64_t due_ns = busy_until_ns_ + options_.delay_ns;
  if (late) {
    ++counters_.reordered;
    held_back_.push(
        Copy(packet, due_ns + SendingNs(size_t{options_.reorder_depth} * options_.mtu)));
  } else {
    steady_.push_back(Copy(packet, due_ns));
  }
  if (twice) {
    ++counters_.duplicated;
    steady_.push_back(Copy(packet, due_ns));
  }
}

std::optional<int64_t> EmulatedLink::next_ns() const {
  std::optional<int64_t> next;
  if (!steady_.empty()) next = steady_.front().due_ns;
  if (!held_back_.empty()) next = std::min(next.value_or(INT64_MAX), held_back_.top().due_ns);
  return next;
}

EmulatedLink::OnTheWay EmulatedLink::Pop(int64_t now_ns) {
  OnTheWay packet;
  if (steady_.empty() || (!held_back_.empty() && steady_.front() > held_back_.top())) {
    packet = held_back_.top();
    held_back_.pop();
  } else {
    packet = steady_.front();
    steady_.pop_front();
  }
  counters_.most_late_ns = std::max(counters_.most_late_ns, now_ns - packet.due_ns);
  ++counters_.packets_out;
  counters_.bytes_out += packet.size;
  return packet;
}

void EmulatedLink::Cut(bool cut) {
  cut_ = cut;
  if (!cut) return;
  busy_until_ns_ = 0;
  const auto lose = [this](const OnTheWay& packet) {
    free_.push_back(packet.bytes);
    ++counters_.cut;
  };
  for (; !steady_.empty(); steady_.pop_front()) lose(steady_.front());
  for (; !held_back_.empty(); held_back_.pop()) lose(held_back_.top());
}

}  // namespace deltawire::test
