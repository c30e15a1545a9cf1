// Pulls without sockets, stepped frame by frame: where they end, which bytes they bring, and what
// they keep in memory. How their streams share them is in served_pull_streams_test.cc.
#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>

#include "common/delta/class_function.h"
#include "common/delta/coders.h"
#include "tests/unit/sender/served_pull_rig.h"

namespace deltawire::sender::served_pull_test {
namespace {

TEST_CASE("pull: the first publish that overtakes it pins its end, and later ones wait") {
  const uint64_t seed = GENERATE(1, 2, 3);
  CAPTURE(seed);
  PublishedModel sender(kChunks, seed);
  sender.Publish(1);
  CoderRates rates;
  ServedPull session(sender.model(), Terms(rates, 1));
  Receiver receiver(*sender.model());
  REQUIRE(session.Start(receiver.Have()).ok());
  // Each frame is followed by a publish. If the pull had no fixed end, lifts would go on for ever.
  uint64_t version = 1;
  while (receiver.ends().empty() && version < 100) {
    REQUIRE(receiver.Step(session, 0));
    sender.Publish(++version);
    session.Overtake(*sender.model()->published());
  }
  REQUIRE(receiver.ends() == std::vector<StateId>{{1, 2}});
  CHECK(receiver.bytes() == sender.content(2));
}

TEST_CASE("pull: whatever publishes come in between, it brings one version") {
  const uint64_t seed = GENERATE(range(10, 40));
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  PublishedModel sender(kChunks, seed);
  sender.Publish(1);
  uint64_t version = 1;
  CoderRates rates;
  const uint16_t streams = 1 + random() % 4;
  ServedPull session(sender.model(), Terms(rates, streams));
  Receiver receiver(*sender.model());
  REQUIRE(session.Start(receiver.Have()).ok());
  std::set<uint16_t> open;
  for (uint16_t s = 0; s < streams; ++s) open.insert(s);
  for (int steps = 0; !open.empty(); ++steps) {
    REQUIRE(steps < 10'000);
    if (random() % 4 == 0) {
      ++version;
      // Where the second version changes everything, lifts go whole.
      sender.Publish(version, version == 2 && seed % 2 == 0);
      session.Overtake(*sender.model()->published());
      continue;
    }
    auto stream = open.begin();
    std::advance(stream, random() % open.size());
    const size_t ends = receiver.ends().size();
    receiver.Step(session, *stream);
    if (receiver.ends().size() > ends) open.erase(stream);
  }
  const StateId end = receiver.ends().front();
  for (const StateId other : receiver.ends()) CHECK(other == end);
  CHECK(end.version <= version);
  CHECK(receiver.bytes() == sender.content(end.version));
}

TEST_CASE("pull: the bytes of its end are made from the newest ones when their half is gone") {
  PublishedModel sender(kChunks, 50);
  sender.Publish(1);
  const auto first = sender.model()->published();
  CoderRates rates;
  ServedPull session(sender.model(), Terms(rates, 1, first));
  Receiver receiver(*sender.model());
  REQUIRE(session.Start(receiver.Have()).ok());
  for (uint64_t version = 2; version <= 6; ++version) {
    sender.Publish(version);
    session.Overtake(*sender.model()->published());
  }
  while (receiver.ends().empty()) REQUIRE(receiver.Step(session, 0));
  CHECK(receiver.whole() == kChunks);
  CHECK(receiver.ends().front() == StateId{1, 1});
  CHECK(receiver.bytes() == sender.content(1));
}

TEST_CASE("pull: what the log drops stays with the pull that needs it") {
  // The log has room for the newest delta only.
  PublishedModel sender(kChunks, 51, {.delta_log_bytes = 1});
  sender.Publish(1);
  CoderRates rates;
  ServedPull session(sender.model(), Terms(rates, 1, sender.model()->published()));
  Receiver receiver(*sender.model());
  REQUIRE(session.Start(receiver.Have()).ok());
  for (uint64_t version = 2; version <= 3; ++version) {
    sender.Publish(version, version == 2);
    session.Overtake(*sender.model()->published());
  }
  while (receiver.ends().empty()) REQUIRE(receiver.Step(session, 0));
  CHECK(receiver.bytes() == sender.content(1));
}

TEST_CASE("pull: versions that change everything do not end the pulls that they overtake") {
  const uint64_t seed = 56;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  PublishedModel sender(kChunks, seed, {.delta_log_bytes = 1});
  sender.Publish(1);
  CoderRates rates;
  // Two pulls of the same state share the chunks that are kept for it.
  std::deque<ServedPull> sessions;
  std::deque<Receiver> receivers;
  const auto join = [&] {
    sessions.emplace_back(sender.model(), Terms(rates, 1, sender.model()->published()));
    receivers.emplace_back(*sender.model());
    REQUIRE(sessions.back().Start(receivers.back().Have()).ok());
  };
  join();
  join();
  // A chunk goes out only every third version: the link is slower than the trainer.
  uint64_t version = 1;
  while (receivers[0].ends().empty() || receivers[1].ends().empty()) {
    sender.Publish(++version, random() % 4 != 0);
    for (ServedPull& session : sessions) session.Overtake(*sender.model()->published());
    if (version % 3 != 0) continue;
    for (size_t i : {0, 1}) {
      if (receivers[i].ends().empty()) REQUIRE(receivers[i].Step(sessions[i], 0));
    }
  }
  CHECK(version > 3 * kChunks);
  for (size_t i : {0, 1}) {
    CHECK(receivers[i].ends().front() == StateId{1, 1});
    CHECK(receivers[i].bytes() == sender.content(1));
  }
}

TEST_CASE("pull: a part's number that was published twice leads back all the same") {
  PublishedModel sender(kChunks, 58, {}, {{0, kChunks - 1}});
  const bool late = GENERATE(false, true);
  CAPTURE(late);
  CoderRates rates;
  std::optional<ServedPull> session;
  Receiver receiver(*sender.model());
  const auto join = [&](const std::shared_ptr<const Published>& end) {
    session.emplace(sender.model(), Terms(rates, 1, end));
    REQUIRE(session->Start(receiver.Have()).ok());
  };
  sender.Publish(49, false, 1);
  const auto end = sender.model()->published();
  if (!late) join(end);
  uint64_t attempt = 1;
  for (const uint64_t version : {50, 50, 51}) {
    sender.Publish(version, true, ++attempt);
    if (!late) session->Overtake(*sender.model()->published());
  }
  if (late) {
    const auto again = sender.model()->At(end->info.identity);
    REQUIRE(again.ok());
    join(*again);
    session->Overtake(*sender.model()->published());
  }
  while (receiver.ends().empty()) REQUIRE(receiver.Step(*session, 0));
  const size_t part = sender.model()->chunks()[kChunks - 1].offset;
  CHECK(std::equal(receiver.bytes().begin(), receiver.bytes().begin() + part,
                   sender.content(49).begin()));
}

TEST_CASE("pull: what is kept for pulls is at most one more model") {
  PublishedModel sender(kChunks, 57, {.delta_log_bytes = 1});
  sender.Publish(1);
  CoderRates rates;
  std::deque<ServedPull> sessions;
  std::deque<Receiver> receivers;
  uint64_t version = 1;
  // Each of the three pulls ends at a state of its own.
  for (int n = 0; n < 3; ++n) {
    sessions.emplace_back(sender.model(), Terms(rates, 1, sender.model()->published()));
    receivers.emplace_back(*sender.model());
    REQUIRE(sessions.back().Start(receivers.back().Have()).ok());
    for (int i = 0; i < 4; ++i) {
      sender.Publish(++version, true);
      for (ServedPull& session : sessions) session.Overtake(*sender.model()->published());
    }
  }
  while (receivers[0].ends().empty()) REQUIRE(receivers[0].Step(sessions[0], 0));
  CHECK(receivers[0].bytes() == sender.content(1));
  const Status refused = sessions[1].Next(0, [] {}).status();
  CHECK(absl::IsAborted(refused));
  CHECK(refused.message().find("delta log does not lead back") != std::string::npos);
}

TEST_CASE("pull: a chunk that a receiver doubts is looked at before it is sent") {
  PublishedModel sender(kChunks, 53);
  sender.Publish(1);
  const bool rebuilt = GENERATE(false, true);
  CAPTURE(rebuilt);
  if (rebuilt) sender.Publish(2);
  const uint32_t chunk = 3;
  sender.Flip(chunk);
  CoderRates rates;
  PullTerms terms = Terms(rates, 1);
  terms.request.corrupt = {chunk};
  ServedPull session(sender.model(), terms);
  Receiver receiver(*sender.model());
  REQUIRE(session.Start(receiver.Have()).ok());
  if (rebuilt) {
    while (receiver.ends().empty()) REQUIRE(receiver.Step(session, 0));
    CHECK(receiver.bytes() == sender.content(2));
    CHECK(sender.model()->scrubber().totals().repaired == 1);
    return;
  }
  for (uint32_t c = 0; c < chunk; ++c) REQUIRE(receiver.Step(session, 0));
  const Status status = session.Next(0, [] {}).status();
  CHECK(absl::IsDataLoss(status));
  CHECK(status.message().find("tensor t3 ") != std::string::npos);
  CHECK(sender.model()->damaged_chunks() == 1);
}

TEST_CASE("pull: a delta is never coded against bytes that have gone bad") {
  const bool flipped = GENERATE(false, true), marked = GENERATE(false, true);
  CAPTURE(flipped, marked);
  // What an element's change is depends on its exponent alone, which the codec tight exploits.
  PublishedModel sender(1, 59);
  const size_t elements = sender.model()->chunks()[0].bytes / 2;
  std::mt19937_64 random(59);
  std::vector<std::byte> before(2 * elements);
  for (size_t i = 0; i < elements; ++i) {
    before[2 * i] = static_cast<std::byte>(random() & 0x7e);
    before[2 * i + 1] = static_cast<std::byte>(0x38 + random() % 4);
  }
  before[101] = std::byte{0x38};  // the one that is flipped, which is no change of the version's
  std::vector<std::byte> after = before;
  for (size_t i = 0; i < elements; ++i) {
    if (before[2 * i + 1] == std::byte{0x3b}) after[2 * i] |= std::byte{1};
  }
  sender.PublishContent(1, before);
  const uint64_t first = (*sender.model()->published()->digests)[0];
  sender.PublishContent(2, after);
  if (flipped) sender.Flip(0, 101);
  if (marked) sender.model()->published()->damaged[0] = 1;
  CoderRates rates;
  PullTerms terms = Terms(rates, 1);
  terms.coding.codec = kernels::Codec::kTight;
  ServedPull session(sender.model(), terms);
  wire::Have have;
  have.chunks = {{.version = 1, .digest = first}};
  REQUIRE(session.Start(have).ok());
  const auto next = session.Next(0, [] {});
  REQUIRE(next.status() == absl::OkStatus());
  REQUIRE(next->has_value());
  const net::OutFrame& frame = **next;
  REQUIRE(frame.header.type == wire::FrameType::kChunkDelta);
  const Coder* const coder = CoderOf(frame.payload);
  CHECK((coder != nullptr) == (!flipped && !marked));
  // The receiver has the right bytes of version 1, and gets those of version 2.
  const kernels::Backend& backend = sender.model()->backend();
  Bytes fast = frame.payload;
  std::vector<std::byte> decoded(kernels::MaxEncodedBytes(before.size(), 2));
  if (coder != nullptr) {
    CodedChunk chunk{backend, before.size(), 2, ClassFunctionOf(DType::kBF16)};
    chunk.old_data = before;
    size_t bytes = 0;
    REQUIRE(coder->decode(chunk, frame.payload, decoded, &bytes) == kernels::DecodeStatus::kOk);
    fast = Bytes(decoded).first(bytes);
  }
  uint64_t digest = 0;
  REQUIRE(backend.decode_apply(sender.model()->key(), fast, before, 2, frame.header.digest_before,
                               &digest) == kernels::DecodeStatus::kOk);
  CHECK(before == after);
}

}  // namespace
}  // namespace deltawire::sender::served_pull_test
