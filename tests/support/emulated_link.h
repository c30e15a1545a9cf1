// One direction of an emulated link: a queue with tail drop, a rate, a delay, and packets that get
// lost, come late or come twice, all by one seed. A function of packets and time: devices and
// clocks are link_emulator.cc's, or a test's. Owner: whoever forwards; holds the packets that are
// on their way. Threads: one. Cost: a packet is copied once, into memory that is used again.
// Errors: none; what does not come out is counted by its reason.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <span>
#include <vector>

namespace deltawire::test {

struct LinkOptions {
  uint64_t bits_per_s = 0;     ///< of the bytes of IP packets; 0: no limit, and no queue
  int64_t delay_ns = 0;        ///< from the packet's last bit sent to its arrival
  uint64_t queue_bytes = 0;    ///< that may wait for their turn; a packet beyond them is dropped
  double loss = 0;             ///< share of the packets that vanish after their turn
  double reorder = 0;          ///< share that is held back ...
  uint32_t reorder_depth = 0;  ///< ... by the time of so many full packets; needs a rate
  double duplicate = 0;        ///< share that arrives twice
  uint32_t mtu = 1500;
};

struct LinkCounters {
  uint64_t packets_in = 0, bytes_in = 0;
  uint64_t packets_out = 0, bytes_out = 0;  ///< duplicates count
  uint64_t queue_full = 0, lost = 0, cut = 0;
  uint64_t reordered = 0, duplicated = 0;
  int64_t most_late_ns = 0;  ///< a packet came out so long after it was due: the emulator's own lag
};

class EmulatedLink {
 public:
  using Packet = std::span<const uint8_t>;

  EmulatedLink(const LinkOptions& options, uint64_t seed);

  /// A packet of at most `mtu` bytes comes in. REQUIRES: `now_ns` never decreases.
  void Offer(Packet packet, int64_t now_ns);
  /// When the next packet comes out; nullopt: none is on its way.
  std::optional<int64_t> next_ns() const;
  /// Calls deliver(Packet) for the packets that are due, `most` of them at most; returns their
  /// number.
  template <typename Deliver>
  int Take(int64_t now_ns, int most, Deliver deliver) {
    int taken = 0;
    while (taken < most && next_ns() && *next_ns() <= now_ns) {
      const OnTheWay packet = Pop(now_ns);
      deliver(Packet(packet.bytes, packet.size));
      free_.push_back(packet.bytes);
      ++taken;
    }
    return taken;
  }
  /// While it is cut nothing gets through, and what was on its way is gone.
  void Cut(bool cut);

  const LinkCounters& counters() const { return counters_; }

 private:
  struct OnTheWay {
    int64_t due_ns;
    uint64_t number;  // of two that are due at one time the first comes first
    uint8_t* bytes;
    size_t size;
    bool operator>(const OnTheWay& o) const {
      return due_ns != o.due_ns ? due_ns > o.due_ns : number > o.number;
    }
  };

  bool Happens(double share);
  int64_t SendingNs(size_t bytes) const;
  OnTheWay Copy(Packet packet, int64_t due_ns);
  OnTheWay Pop(int64_t now_ns);

  const LinkOptions options_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<uint8_t[]>> memory_;
  std::vector<uint8_t*> free_;   // of memory_, `mtu` bytes each
  std::deque<OnTheWay> steady_;  // in the order of due_ns, since the delay is one for all
  std::priority_queue<OnTheWay, std::vector<OnTheWay>, std::greater<>> held_back_;
  uint64_t number_ = 0;
  int64_t busy_until_ns_ = 0;  // the last bit that waits will have been sent
  bool cut_ = false;
  LinkCounters counters_;
};

}  // namespace deltawire::test
