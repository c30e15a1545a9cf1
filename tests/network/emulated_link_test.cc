// What the link emulator does to packets, on a clock of the test's own.
#include "tests/support/emulated_link.h"

#include <catch2/catch.hpp>
#include <map>
#include <vector>

namespace deltawire::test {
namespace {

constexpr int64_t kMs = 1'000'000;

std::vector<uint8_t> Packet(uint32_t number, size_t size = 1500) {
  std::vector<uint8_t> packet(size);
  for (size_t i = 0; i < 4; ++i) packet[i] = static_cast<uint8_t>(number >> (8 * i));
  return packet;
}

uint32_t NumberOf(EmulatedLink::Packet packet) {
  return packet[0] | packet[1] << 8 | packet[2] << 16 | static_cast<uint32_t>(packet[3]) << 24;
}

struct Arrival {
  int64_t at_ns;
  uint32_t number;
  size_t size;
  bool operator==(const Arrival&) const = default;
};

std::vector<Arrival> TakeAll(EmulatedLink& link) {
  std::vector<Arrival> arrivals;
  while (const auto next = link.next_ns()) {
    link.Take(*next, 1, [&](EmulatedLink::Packet packet) {
      arrivals.push_back({*next, NumberOf(packet), packet.size()});
    });
  }
  return arrivals;
}

TEST_CASE("emulated link: a packet takes its time to be sent, and then the delay") {
  EmulatedLink link({.bits_per_s = 12'000'000, .delay_ns = 20 * kMs, .queue_bytes = 100'000}, 1);
  // 1500 bytes take 1 ms. The second waits for the first, and the third finds the link idle.
  link.Offer(Packet(0), 0);
  link.Offer(Packet(1), 0);
  link.Offer(Packet(2, 750), 10 * kMs);
  CHECK(link.Take(20 * kMs, 10, [](EmulatedLink::Packet) {}) == 0);
  CHECK(TakeAll(link) == std::vector<Arrival>{{21 * kMs, 0, 1500},
                                              {22 * kMs, 1, 1500},
                                              {30 * kMs + kMs / 2, 2, 750}});
}

TEST_CASE("emulated link: what does not fit into the queue is dropped, and the queue empties") {
  EmulatedLink link({.bits_per_s = 12'000'000, .queue_bytes = 4500}, 1);
  for (uint32_t i = 0; i < 10; ++i) link.Offer(Packet(i), 0);
  CHECK(link.counters().queue_full == 7);
  link.Offer(Packet(10), 1 * kMs);  // the first has been sent
  link.Offer(Packet(11), 1 * kMs);
  CHECK(link.counters().queue_full == 8);
  CHECK(TakeAll(link).size() == 4);
}

TEST_CASE("emulated link: nothing goes faster than the rate, and an idle link saves nothing up") {
  EmulatedLink link({.bits_per_s = 8'000'000, .queue_bytes = 1 << 20}, 1);
  for (uint32_t i = 0; i < 500; ++i) link.Offer(Packet(i, 1000), 1000 * kMs);
  const auto arrivals = TakeAll(link);
  REQUIRE(arrivals.size() == 500);
  CHECK(arrivals.back().at_ns == 1500 * kMs);
}

TEST_CASE("emulated link: as many packets are lost, late and double as was asked for") {
  const uint64_t seed = GENERATE(1, 2, 3);
  CAPTURE(seed);
  constexpr uint32_t kPackets = 100'000;
  EmulatedLink link({.bits_per_s = 1'000'000'000,
                     .delay_ns = 5 * kMs,
                     .queue_bytes = uint64_t{1} << 30,
                     .loss = 0.01,
                     .reorder = 0.02,
                     .reorder_depth = 5,
                     .duplicate = 0.005},
                    seed);
  for (uint32_t i = 0; i < kPackets; ++i) link.Offer(Packet(i), 0);
  const auto arrivals = TakeAll(link);
  const LinkCounters& c = link.counters();
  CHECK(c.lost == Approx(0.01 * kPackets).epsilon(0.15));
  CHECK(c.reordered == Approx(0.02 * kPackets).epsilon(0.15));
  CHECK(c.duplicated == Approx(0.005 * kPackets).epsilon(0.2));
  CHECK(arrivals.size() == kPackets - c.lost + c.duplicated);
  CHECK(c.packets_out == arrivals.size());
  std::map<uint32_t, int> times;
  uint32_t highest = 0;
  uint64_t overtaken = 0, farthest = 0;
  for (const Arrival& a : arrivals) {
    const bool first = ++times[a.number] == 1;
    if (a.number < highest && first) {
      ++overtaken;
      farthest = std::max<uint64_t>(farthest, highest - a.number);
    }
    highest = std::max(highest, a.number);
  }
  CHECK(overtaken > c.reordered / 2);
  CHECK(overtaken <= c.reordered);
  CHECK(farthest <= 6);
  CHECK(times.size() == kPackets - c.lost);
}

TEST_CASE("emulated link: one seed decides the same, another one does not") {
  const auto lost = [](uint64_t seed) {
    EmulatedLink link({.loss = 0.5}, seed);
    for (uint32_t i = 0; i < 64; ++i) link.Offer(Packet(i), 0);
    return TakeAll(link);
  };
  CHECK(lost(7) == lost(7));
  CHECK(lost(7) != lost(8));
}

TEST_CASE("emulated link: while it is cut nothing arrives, not even what was on its way") {
  EmulatedLink link({.bits_per_s = 12'000'000, .delay_ns = 20 * kMs, .queue_bytes = 100'000}, 1);
  for (uint32_t i = 0; i < 5; ++i) link.Offer(Packet(i), 0);
  link.Cut(true);
  link.Offer(Packet(5), kMs);
  CHECK_FALSE(link.next_ns());
  CHECK(link.counters().cut == 6);
  link.Cut(false);
  link.Offer(Packet(6), 2 * kMs);
  CHECK(TakeAll(link) == std::vector<Arrival>{{23 * kMs, 6, 1500}});
}

}  // namespace
}  // namespace deltawire::test
