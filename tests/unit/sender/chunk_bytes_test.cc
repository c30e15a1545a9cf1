// ChunkBytes while publishes go on: a pull gets the right bytes of its end or an error, never other
// bytes. Also how much memory that takes.
#include "common/serving/chunk_bytes.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "tests/support/bad_memory.h"
#include "tests/support/eventually.h"
#include "tests/unit/sender/published_model.h"

namespace deltawire::sender::chunk_bytes_test {
namespace {

using test::PublishedModel;
using testing::Eventually;
using How = ChunkBytes::How;
constexpr uint32_t kChunks = 16;

class Sender : public PublishedModel {
 public:
  /// A sender with a running pull that may yet pin the newest state.
  explicit Sender(uint64_t seed, uint64_t log_bytes = uint64_t{1} << 30)
      : PublishedModel(kChunks, seed, {.delta_log_bytes = log_bytes}) {
    model()->CountPull(1);
  }
  std::shared_ptr<const Published> Version(uint64_t version, bool everything = false) {
    Publish(version, everything);
    return model()->published();
  }
  Bytes Of(uint64_t version, uint32_t chunk) const {
    const Chunk& place = model()->chunks()[chunk];
    return Bytes(content(version)).subspan(place.offset, place.bytes);
  }
  LeasedState Leased(const std::shared_ptr<const Published>& state) const {
    return {state, model()->LeaseHalf(state->half, state->info.identity)};
  }
  void FlipIn(uint32_t half, uint32_t chunk) const {
    testing::Flip(Halves::PathOf(model()->home().directory(), half), model()->layout(),
                  model()->chunks()[chunk].offset + 7);
  }
  /// The old bytes that lead back to the state.
  static uint64_t Kept(const Published& state) {
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < kChunks; ++c) {
      const auto way = state.back->FindFrom({.chunk = c});
      if (way && way->from != nullptr) bytes += way->from->bytes().size();
    }
    return bytes;
  }
};

/// What Get returned for a state's chunks: the right bytes, wrong bytes, or a refusal.
struct Brought {
  std::set<uint32_t> right, wrong;
  std::map<uint32_t, Status> refused;
};

Brought GetAll(ChunkBytes& from, const Sender& sender, const LeasedState& at, How how = {}) {
  Brought all;
  const uint64_t version = at.state->info.id().version;
  for (uint32_t c = 0; c < kChunks; ++c) {
    const auto got = from.Get(c, at, how);
    if (!got.ok()) {
      all.refused[c] = got.status();
    } else {
      (std::ranges::equal(got->bytes, sender.Of(version, c)) ? all.right : all.wrong).insert(c);
    }
  }
  return all;
}

/// The chunks that have the same digest in both states.
std::set<uint32_t> Same(const Published& a, const Published& b) {
  std::set<uint32_t> same;
  for (uint32_t c = 0; c < kChunks; ++c) {
    if ((*a.digests)[c] == (*b.digests)[c]) same.insert(c);
  }
  return same;
}

bool Says(const Status& status, const std::string& part) {
  CAPTURE(status, part);
  const bool says = MessageOf(status).find(part) != std::string::npos;
  CHECK(says);
  return says;
}

std::string TensorOf(uint32_t chunk) { return "tensor t" + std::to_string(chunk) + " "; }

TEST_CASE("chunk bytes: straight from the half they hold it and a copy does not") {
  Sender sender(70);
  const auto state = sender.Version(1);
  ChunkBytes bytes(*sender.model());
  const Bytes half = sender.model()->half(state->half);
  const auto lies_in_half = [&](const WholeChunk& chunk) {
    return chunk.bytes.data() >= half.data() && chunk.bytes.data() < half.data() + half.size();
  };
  std::optional<StatusOr<WholeChunk>> straight, copy;
  {
    const LeasedState at = sender.Leased(state);
    straight = bytes.Get(3, at, {});
    copy = bytes.Get(3, at, {.copy = true});
  }
  REQUIRE((straight->ok() && copy->ok()));
  CHECK(lies_in_half(**straight));
  CHECK((*straight)->half == state->half);
  CHECK(!lies_in_half(**copy));
  CHECK((*copy)->half == std::nullopt);
  sender.Version(2, true);
  std::optional<uint32_t> cut;
  sender.model()->offloads().diff().SetCutter([&](uint32_t drained) {
    cut = drained;
    CHECK(std::ranges::equal((*straight)->bytes, sender.Of(1, 3)));
    straight.reset();
  });
  sender.Version(3, true);
  CHECK(cut == state->half);
  CHECK(std::ranges::equal((*copy)->bytes, sender.Of(1, 3)));
}

TEST_CASE("chunk bytes: if the end is not pinned only its unchanged chunks are there") {
  const uint64_t seed = GENERATE(71, 72, 73);
  CAPTURE(seed);
  Sender sender(seed);
  const auto end = sender.Version(1);
  ChunkBytes bytes(*sender.model());
  const auto newest = sender.Version(2);
  const Brought all = GetAll(bytes, sender, {end, nullptr});
  CHECK(all.wrong.empty());
  CHECK(all.right == Same(*end, *newest));
  REQUIRE((!all.right.empty() && !all.refused.empty()));
  for (const auto& [chunk, status] : all.refused) {
    CHECK(absl::IsAborted(status));
    Says(status, TensorOf(chunk));
  }
  // The unchanged chunks lie in the newest half. Get must say so, for a cut asks who reads a half.
  const auto same = bytes.Get(*all.right.begin(), {end, nullptr}, {});
  REQUIRE(same.ok());
  CHECK(same->half == newest->half);
  CHECK(same->keep != nullptr);
  // Under a lease of the end's own half, all of its chunks are there.
  CHECK(GetAll(bytes, sender, sender.Leased(end)).right.size() == kChunks);
}

TEST_CASE("chunk bytes: a pinned end comes whole whatever is published since") {
  const uint64_t seed = GENERATE(range(80, 86));
  // The small log has room for the newest delta only, without payloads, so old bytes are kept.
  const uint64_t log_bytes = GENERATE(uint64_t{1}, uint64_t{1} << 30);
  CAPTURE(seed, log_bytes);
  Sender sender(seed, log_bytes);
  std::mt19937_64 random(seed);
  uint64_t version = 1;
  sender.Version(version);
  if (seed % 2 == 0) sender.Version(++version);  // deltas of the log lead to this end
  const auto end = sender.model()->published();
  ChunkBytes bytes(*sender.model());
  const auto pin = sender.model()->store().Pin(end);
  for (int publishes = 0; publishes < 10; ++publishes) {
    sender.Version(++version, random() % 3 == 0);
    CAPTURE(version);
    const How how{.copy = random() % 2 == 0, .check = random() % 2 == 0};
    const Brought all = GetAll(bytes, sender, {end, nullptr}, how);
    CHECK(all.right.size() == kChunks);
  }
  CHECK((sender.Kept(*end) > 0) == (log_bytes == 1));
}

TEST_CASE("chunk bytes: what is kept for an end is bounded as deltas and as bytes") {
  const uint64_t seed = GENERATE(90, 91);
  CAPTURE(seed);
  constexpr uint64_t kLog = 128 << 10;  // as much as the model
  Sender sender(seed, kLog);
  const auto end = sender.Version(1);
  ChunkBytes bytes(*sender.model());
  const auto pin = sender.model()->store().Pin(end);
  std::vector<std::weak_ptr<const Delta>> deltas;
  size_t most = 0;
  for (uint64_t version = 2; version <= 60; ++version) {
    CAPTURE(version);
    const auto newest = sender.Version(version, version % 5 == 0);
    deltas.push_back(newest->log.back());
    size_t number = 0;
    // The model's own thread holds the version before until it has announced this one.
    REQUIRE(Eventually([&] {
      uint64_t held = number = 0;
      for (const auto& weak : deltas) {
        const auto delta = weak.lock();
        if (delta == nullptr || std::ranges::find(newest->log, delta) != newest->log.end()) {
          continue;
        }
        held += delta->memory_bytes();
        ++number;
      }
      return held <= VersionStore::kHeldLogs * kLog;
    }));
    CHECK(sender.model()->store().held_bytes() <=
          VersionStore::kHeldLogs * kLog + sender.model()->owned_bytes());
    CHECK(Sender::Kept(*end) <= sender.model()->owned_bytes());
    most = std::max(most, number);
  }
  // Small deltas are kept for a while, since old bytes take much more.
  CHECK(most > 2);
  CHECK(Sender::Kept(*end) > 0);
  CHECK(GetAll(bytes, sender, {end, nullptr}).right.size() == kChunks);
}

TEST_CASE("chunk bytes: versions that change everything do not outgrow the log for a pull") {
  constexpr uint64_t kLog = 32 << 10;
  Sender sender(96, kLog);
  const auto end = sender.Version(1);
  const auto pin = sender.model()->store().Pin(end);
  for (uint64_t version = 2; version <= 5; ++version) {
    sender.Version(version, true);
    CHECK(sender.model()->store().log_bytes() <= kLog);
  }
  ChunkBytes bytes(*sender.model());
  CHECK(GetAll(bytes, sender, {end, nullptr}).right.size() == kChunks);
}

TEST_CASE("chunk bytes: of states that hold too many old deltas the oldest are given up") {
  constexpr uint64_t kLog = 64 << 10;
  Sender sender(97, kLog);
  sender.Version(1);
  std::vector<std::pair<std::shared_ptr<const Published>, std::shared_ptr<const void>>> ends;
  for (uint64_t version = 2; version <= 60; ++version) {
    const auto newest = sender.Version(version);
    if (version % 6 == 0) ends.emplace_back(newest, sender.model()->store().Pin(newest));
    // A pull whose state is given up is cut.
    std::erase_if(ends, [](const auto& end) { return end.first->back->discarded(); });
    REQUIRE(!ends.empty() == (version >= 6));
    CHECK(sender.model()->store().held_bytes() <=
          VersionStore::kHeldLogs * kLog + sender.model()->owned_bytes());
  }
  CHECK(ends.size() < 9);
  for (const auto& [end, pin] : ends) CHECK(end->info.id().version > 12);
  ChunkBytes bytes(*sender.model());
  CHECK(GetAll(bytes, sender, {ends.front().first, nullptr}).wrong.empty());
}

TEST_CASE("chunk bytes: a state that is pinned late is reached as long as the log leads back") {
  const uint64_t seed = 92;
  const bool in_log = GENERATE(false, true), from_start = GENERATE(false, true);
  CAPTURE(seed, in_log, from_start);
  Sender sender(seed, in_log ? uint64_t{1} << 30 : 1);
  sender.model()->CountPull(-1);
  sender.Version(1);
  if (!from_start) sender.Version(2);
  const auto end = sender.model()->published();
  ChunkBytes bytes(*sender.model());
  sender.Version(3);
  auto newest = sender.Version(4);
  const auto pin = sender.model()->store().Pin(end);
  const auto check = [&] {
    const Brought all = GetAll(bytes, sender, {end, nullptr});
    CHECK(all.wrong.empty());
    if (in_log) {
      CHECK(all.right.size() == kChunks);
      return;
    }
    CHECK(std::ranges::includes(all.right, Same(*end, *newest)));
    for (const auto& [chunk, status] : all.refused) {
      CHECK(absl::IsAborted(status));
      Says(status, TensorOf(chunk));
    }
  };
  check();
  // A delta that was missed stays missing.
  for (uint64_t version = 5; version <= 7; ++version) {
    newest = sender.Version(version);
    check();
  }
}

TEST_CASE("chunk bytes: a state that nobody may pin keeps no old bytes") {
  const uint64_t seed = 93;
  CAPTURE(seed);
  Sender sender(seed, 1);
  sender.model()->CountPull(-1);
  const auto end = sender.Version(1);
  ChunkBytes bytes(*sender.model());
  const auto newest = sender.Version(2);
  const auto pin = sender.model()->store().Pin(end);
  const Brought all = GetAll(bytes, sender, {end, nullptr});
  CHECK(all.wrong.empty());
  CHECK(all.right == Same(*end, *newest));
  for (const auto& [chunk, status] : all.refused) CHECK(absl::IsAborted(status));
  CHECK(sender.model()->store().held_bytes() == 0);
}

TEST_CASE("chunk bytes: old bytes are kept before the end is pinned if a pull may pin it") {
  Sender sender(94, 1);
  const auto end = sender.Version(1);
  ChunkBytes bytes(*sender.model());
  sender.Version(2, true);
  const auto pin = sender.model()->store().Pin(end);
  sender.Version(3, true);
  CHECK(GetAll(bytes, sender, {end, nullptr}).right.size() == kChunks);
}

TEST_CASE("chunk bytes: an offload that is abandoned leaves what leads back as it was") {
  Sender sender(95, 1);
  const auto end = sender.Version(1);
  ChunkBytes bytes(*sender.model());
  const auto pin = sender.model()->store().Pin(end);
  const auto grant = sender.model()->offloads().Begin({.version = 2}, [] { return false; });
  REQUIRE(grant.ok());
  const std::vector<std::byte> garbage(sender.content(1).size(), std::byte{7});
  PublishedModel::Write(grant->half_path, grant->data_offset, garbage);
  std::vector<uint32_t> tensors(kChunks / 2);
  for (uint32_t t = 0; t < tensors.size(); ++t) tensors[t] = t;
  WrittenNotice notice;
  notice.tensors = tensors;
  REQUIRE(sender.model()->offloads().MarkWritten(grant->lease, notice).ok());
  REQUIRE(Eventually([&] { return Sender::Kept(*end) > 0; }));
  REQUIRE(sender.model()->offloads().Abandon(grant->lease, 0, "a test").ok());
  for (uint64_t version = 3; version <= 6; ++version) {
    sender.Version(version, version % 2 == 0);
    CHECK(GetAll(bytes, sender, {end, nullptr}).right.size() == kChunks);
  }
}

TEST_CASE("chunk bytes: pulls of one end share what was made for it") {
  Sender sender(94, 1);
  const auto end = sender.Version(1);
  ChunkBytes one(*sender.model()), two(*sender.model());
  const auto pin = sender.model()->store().Pin(end), other = sender.model()->store().Pin(end);
  for (uint64_t version = 2; version <= 3; ++version) sender.Version(version, true);
  CHECK(sender.Kept(*end) == sender.model()->owned_bytes());
  for (uint32_t c = 0; c < kChunks; ++c) {
    const auto a = one.Get(c, {end, nullptr}, {}), b = two.Get(c, {end, nullptr}, {.copy = true});
    REQUIRE((a.ok() && b.ok()));
    CHECK(a->bytes.data() == b->bytes.data());
    CHECK(a->half == std::nullopt);
    CHECK(std::ranges::equal(a->bytes, sender.Of(1, c)));
  }
}

TEST_CASE(
    "chunk bytes: of several ends none gets the bytes of another and all keep at most one model") {
  const uint64_t seed = GENERATE(range(95, 100));
  CAPTURE(seed);
  Sender sender(seed, 1);
  struct End {
    std::shared_ptr<const Published> state;
    std::unique_ptr<ChunkBytes> bytes;
    std::shared_ptr<const void> pin;
  };
  std::vector<End> ends;
  uint64_t version = 0;
  const auto publish = [&](bool everything) {
    sender.Version(++version, everything);
    std::set<const OldBytes*> kept;  // ends may share them
    for (const End& end : ends) {
      for (uint32_t c = 0; c < kChunks; ++c) {
        const auto way = end.state->back->FindFrom({.chunk = c});
        if (way && way->from != nullptr) kept.insert(way->from.get());
      }
    }
    CHECK(kept.size() <= kChunks);
  };
  const auto join = [&] {
    const auto state = sender.model()->published();
    ends.push_back(
        {state, std::make_unique<ChunkBytes>(*sender.model()), sender.model()->store().Pin(state)});
  };
  publish(true);
  for (int n = 0; n < 3; ++n) {
    join();
    for (int i = 0; i < 4; ++i) publish(seed % 2 == 0);
  }
  std::set<uint32_t> refused;
  for (const End& end : ends) {
    const Brought all = GetAll(*end.bytes, sender, {end.state, nullptr});
    CHECK(all.wrong.empty());
    for (const auto& [chunk, status] : all.refused) {
      CHECK(absl::IsAborted(status));
      refused.insert(chunk);
    }
  }
  CHECK(GetAll(*ends[0].bytes, sender, {ends[0].state, nullptr}).right.size() == kChunks);
  CHECK(!refused.empty());
  // The memory that was kept for ends is free for other ends once they are gone.
  ends.clear();
  join();
  for (int i = 0; i < 8; ++i) publish(i == 0);
  CHECK(sender.Kept(*ends[0].state) > 0);
  CHECK(GetAll(*ends[0].bytes, sender, {ends[0].state, nullptr}).right.size() == kChunks);
}

TEST_CASE("chunk bytes: bytes that lost their digest are not sent") {
  const uint64_t seed = 110;
  CAPTURE(seed);
  const uint32_t bad = 5;
  const bool copy = GENERATE(false, true);
  CAPTURE(copy);
  Sender sender(seed, 1);
  const auto end = sender.Version(1);
  ChunkBytes bytes(*sender.model());
  const auto refuses = [&](const LeasedState& at, bool check) {
    const Status status = bytes.Get(bad, at, {.copy = copy, .check = check}).status();
    CAPTURE(status);
    CHECK(bytes.Get(bad - 1, at, {.copy = copy, .check = check}).ok());
    return absl::IsDataLoss(status) && Says(status, TensorOf(bad));
  };
  SECTION("in a half that somebody doubts") {
    sender.FlipIn(end->half, bad);
    CHECK(refuses(sender.Leased(end), true));
  }
  SECTION("in a half where that is known") {
    sender.FlipIn(end->half, bad);
    sender.model()->Recheck(bad);
    CHECK(refuses(sender.Leased(end), false));
  }
  SECTION("in the half of a version that is not the newest any more") {
    sender.Version(2, true);
    const auto made = sender.model()->At(end->info.identity);
    REQUIRE(made.ok());
    sender.FlipIn(end->half, bad);
    CHECK(refuses(sender.Leased(*made), false));
  }
  SECTION("in what was kept, and somebody doubts it") {
    const auto pin = sender.model()->store().Pin(end);
    for (uint64_t v = 2; v <= 3; ++v) sender.Version(v, true);
    const auto kept = end->back->FindFrom({.chunk = bad});
    REQUIRE((kept && kept->from != nullptr));
    const_cast<std::byte&>(kept->from->bytes()[9]) ^= std::byte{4};
    CHECK(refuses({end, nullptr}, false));
  }
}

TEST_CASE("chunk bytes: nothing is sent that was made of bytes that lost their digest") {
  Sender sender(110);
  const auto end = sender.Version(1);
  ChunkBytes bytes(*sender.model());
  const auto pin = sender.model()->store().Pin(end);
  const auto newest = sender.Version(2);
  REQUIRE(Same(*end, *newest).size() < kChunks);
  for (uint32_t c = 0; c < kChunks; ++c) sender.FlipIn(newest->half, c);
  const std::set<uint32_t> same = Same(*end, *newest);
  for (const auto& [chunk, status] : GetAll(bytes, sender, {end, nullptr}).refused) {
    CHECK(absl::IsDataLoss(status));
    CHECK(!same.contains(chunk));
    Says(status, TensorOf(chunk));
  }
  CHECK(GetAll(bytes, sender, {end, nullptr}, {.check = true}).refused.size() == kChunks);
}

TEST_CASE("chunk bytes: nothing is made of a chunk that is known to be bad in the newest half") {
  const uint64_t seed = 111;
  CAPTURE(seed);
  Sender sender(seed);
  const auto end = sender.Version(1);
  ChunkBytes bytes(*sender.model());
  const auto pin = sender.model()->store().Pin(end);
  const auto newest = sender.Version(2);
  for (uint32_t c = 0; c < kChunks; ++c) newest->damaged[c] = 1;
  const Brought none = GetAll(bytes, sender, {end, nullptr});
  CHECK(none.refused.size() == kChunks);
  CHECK(GetAll(bytes, sender, sender.Leased(end)).right.size() == kChunks);
}

TEST_CASE("chunk bytes: a version that brings a lost chunk again serves the pulls before it") {
  const uint64_t seed = 112;
  CAPTURE(seed);
  Sender sender(seed);
  const auto end = sender.Version(1);
  for (uint32_t c = 0; c < kChunks; ++c) {
    sender.FlipIn(end->half, c);
    sender.model()->Recheck(c);
  }
  ChunkBytes bytes(*sender.model());
  const auto pin = sender.model()->store().Pin(end);
  CHECK(GetAll(bytes, sender, sender.Leased(end)).refused.size() == kChunks);
  const auto newest = sender.Version(2);
  const Brought all = GetAll(bytes, sender, sender.Leased(end));
  CHECK(all.wrong.empty());
  CHECK(all.right == Same(*end, *newest));
  REQUIRE((!all.right.empty() && !all.refused.empty()));
  for (const auto& [chunk, status] : all.refused) {
    CHECK(absl::IsDataLoss(status));
    Says(status, TensorOf(chunk));
  }
}

TEST_CASE("chunk bytes: a pull beside a publisher gets its end and no other bytes") {
  const uint64_t seed = 113;
  CAPTURE(seed);
  Sender sender(seed);
  const auto end = sender.Version(1);
  ChunkBytes bytes(*sender.model());
  const auto pin = sender.model()->store().Pin(end);
  const std::vector<std::byte> content = sender.content(1);
  std::atomic<bool> over{false};
  std::atomic<uint64_t> right{0}, other{0};
  std::vector<std::thread> readers;
  for (uint32_t n = 0; n < 2; ++n) {
    readers.emplace_back([&, n] {
      for (uint32_t c = n; !over; ++c) {
        const LeasedState at = c % 3 == 0 ? sender.Leased(end) : LeasedState{end, nullptr};
        const auto got = bytes.Get(c % kChunks, at, {.copy = c % 2 == 0});
        const Chunk& place = sender.model()->chunks()[c % kChunks];
        const Bytes wanted = Bytes(content).subspan(place.offset, place.bytes);
        ++(got.ok() && std::ranges::equal(got->bytes, wanted) ? right : other);
      }
    });
  }
  for (uint64_t version = 2; version <= 20; ++version) sender.Version(version);
  while (right + other < 1000) std::this_thread::yield();
  over = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(other == 0);
}

TEST_CASE("chunk bytes: all states together keep what the budget has and give it back") {
  const auto budget = std::make_shared<OldBytes::Budget>(100);
  const std::vector<std::byte> memory(100, std::byte{3});
  const auto copy = [&](size_t bytes) {
    return OldBytes::Copy(budget, Bytes(memory).first(bytes));
  };
  auto one = copy(60);
  REQUIRE(one != nullptr);
  CHECK(copy(41) == nullptr);
  const auto two = copy(40);
  REQUIRE(two != nullptr);
  CHECK(std::ranges::equal(two->bytes(), Bytes(memory).first(40)));
  CHECK(copy(1) == nullptr);
  one = nullptr;
  CHECK(budget->used() == 40);
  CHECK(copy(61) == nullptr);
  CHECK(copy(60) != nullptr);
}

TEST_CASE("chunk bytes: chunks that are just being kept are served all the while") {
  std::atomic<uint64_t> served{0}, refused{0};
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    PublishedModel sender(2, seed, {.delta_log_bytes = 1});
    Model& model = *sender.model();
    model.CountPull(1);
    sender.Publish(1);
    const auto end = model.published();
    ChunkBytes bytes(model);
    const auto pin = model.store().Pin(end);
    std::atomic<bool> over{false};
    Thread reader([&] {
      for (uint32_t c = 0; !over; ++c) {
        ++(bytes.Get(c % 2, {end, nullptr}, {}).ok() ? served : refused);
      }
    });
    for (uint64_t v = 2; v <= 5; ++v) sender.Publish(v, true);
    over = true;
    reader.join();
  }
  CHECK(refused == 0);
  CHECK(served > 0);
}

TEST_CASE("chunk bytes: a delta that was missed is missed though its number came twice") {
  PublishedModel sender(4, 5, {.delta_log_bytes = 1}, {{0, 3}});
  Model& model = *sender.model();
  sender.Publish(50, true, 1);
  const auto end = model.published();
  ChunkBytes bytes(model);
  sender.Publish(50, true, 2);
  sender.Publish(51, true, 3);
  // The log has room for one delta: the other is missed.
  const auto pin = model.store().Pin(end);
  for (uint32_t c = 0; c < 3; ++c) {
    CHECK(absl::IsAborted(bytes.Get(c, {end, nullptr}, {}).status()));
  }
}

}  // namespace
}  // namespace deltawire::sender::chunk_bytes_test
