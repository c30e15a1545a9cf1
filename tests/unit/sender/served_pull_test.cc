// Pulls without sockets, stepped frame by frame: where they end, which bytes they bring, and what
// they keep in memory.
#include "common/serving/served_pull.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <map>
#include <set>

#include "common/delta/class_function.h"
#include "common/delta/coders.h"
#include "tests/unit/sender/published_model.h"

namespace deltawire::sender {
namespace {

using test::PublishedModel;
constexpr uint32_t kChunks = 8;

PullTerms Terms(CoderRates& rates, uint16_t streams, std::shared_ptr<const Published> pinned = {}) {
  PullTerms terms;
  terms.receiver_id = "r";
  terms.streams = streams;
  terms.coding.rates = &rates;
  terms.coding.link = std::make_shared<LinkEstimate>();
  terms.pinned = std::move(pinned);
  return terms;
}

/// Applies the frames as a receiver does.
class Receiver {
 public:
  explicit Receiver(const Model& model)
      : model_(model), bytes_(model.layout().total_bytes()), have_(Have()) {}

  wire::Have Have() const {
    wire::Have have;
    have.chunks.resize(model_.chunks().size());
    return have;
  }

  /// Takes one frame of `stream`, which may be its end. False when there is none yet.
  bool Step(ServedPull& session, uint16_t stream) {
    auto next = session.Next(stream, [this, stream] { woken_.insert(stream); });
    REQUIRE(next.status() == absl::OkStatus());
    if (!next->has_value()) return false;
    Apply(**next);
    return true;
  }

  void Apply(const net::OutFrame& frame) {
    const wire::FrameHeader& h = frame.header;
    if (h.type == wire::FrameType::kEnd) {
      ends_.push_back({h.epoch, h.version});
      return;
    }
    const Chunk& place = model_.chunks()[h.chunk];
    const MutableBytes to = MutableBytes(bytes_).subspan(place.offset, place.bytes);
    uint64_t digest = 0;
    if (h.type == wire::FrameType::kChunkFull) {
      ++whole_;
      REQUIRE(frame.payload.size() == to.size());
      std::memcpy(to.data(), frame.payload.data(), to.size());
    } else {
      REQUIRE(h.type == wire::FrameType::kChunkDelta);
      CHECK(Digest(to) == h.digest_before);
      REQUIRE(model_.backend().decode_apply(model_.key(), frame.payload, to, place.width,
                                            h.digest_before,
                                            &digest) == kernels::DecodeStatus::kOk);
    }
    CHECK(Digest(to) == h.digest_after);
  }

  /// Has the chunk's bytes from the start.
  void Set(uint32_t chunk, Bytes content) {
    const Chunk& place = model_.chunks()[chunk];
    const Bytes from = content.subspan(place.offset, place.bytes);
    std::ranges::copy(from, bytes_.begin() + static_cast<std::ptrdiff_t>(place.offset));
  }
  uint64_t Digest(Bytes bytes) const { return model_.backend().digest(model_.key(), bytes); }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  const std::vector<StateId>& ends() const { return ends_; }
  size_t whole() const { return whole_; }
  std::set<uint16_t>& woken() { return woken_; }

 private:
  const Model& model_;
  std::vector<std::byte> bytes_;
  wire::Have have_;
  std::vector<StateId> ends_;
  std::set<uint16_t> woken_;
  size_t whole_ = 0;
};

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
    session.Overtaken(*sender.model()->published());
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
      session.Overtaken(*sender.model()->published());
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
    session.Overtaken(*sender.model()->published());
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
    session.Overtaken(*sender.model()->published());
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
    for (ServedPull& session : sessions) session.Overtaken(*sender.model()->published());
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
    if (!late) session->Overtaken(*sender.model()->published());
  }
  if (late) {
    const auto again = sender.model()->At(end->info.identity);
    REQUIRE(again.ok());
    join(*again);
    session->Overtaken(*sender.model()->published());
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
      for (ServedPull& session : sessions) session.Overtaken(*sender.model()->published());
    }
  }
  while (receivers[0].ends().empty()) REQUIRE(receivers[0].Step(sessions[0], 0));
  CHECK(receivers[0].bytes() == sender.content(1));
  const Status refused = sessions[1].Next(0, [] {}).status();
  CHECK(absl::IsAborted(refused));
  CHECK(refused.message().find("delta log does not lead back") != std::string::npos);
}

TEST_CASE("pull: a chunk whose payload another thread makes does not hold up the others") {
  using kernels::Codec;
  const bool overtaken = GENERATE(false, true);
  CAPTURE(overtaken);
  PublishedModel sender(kChunks, 60);
  sender.Publish(1);
  const auto held = sender.model()->published();
  sender.Publish(2);
  const auto now = sender.model()->published();
  const auto& changes = now->log.back()->chunks();
  REQUIRE(changes.size() > 2);
  const uint32_t first = changes.front().chunk;
  CoderRates rates;
  PullTerms terms = Terms(rates, 1);
  terms.coding.codec = Codec::kTight;
  ServedPull session(sender.model(), std::move(terms));
  wire::Have have;
  have.held = held->info.identity;
  for (const uint64_t digest : *held->digests) have.chunks.push_back({1, digest, 0});
  REQUIRE(session.Start(have).ok());

  std::map<uint32_t, std::vector<uint64_t>> came;  // versions by chunk
  std::optional<StateId> end;
  bool woken = false;
  const auto take = [&] {
    while (!end) {
      const auto next = session.Next(0, [&] { woken = true; });
      REQUIRE(next.status() == absl::OkStatus());
      if (!next->has_value()) return;
      const wire::FrameHeader& header = (*next)->header;
      if (header.type == wire::FrameType::kEnd) {
        end = {header.epoch, header.version};
      } else {
        came[header.chunk].push_back(header.version);
      }
    }
  };
  // Another pull makes the payload of the first chunk, while this one goes on. It fails to.
  const auto make = [&] {
    take();
    CHECK(came.size() == changes.size() - 1);
    CHECK_FALSE(came.contains(first));
    if (overtaken) {
      sender.Publish(3, true);
      session.Overtaken(*sender.model()->published());
      take();
      for (const auto& [chunk, versions] : came) CHECK(versions.back() == 3);
    }
    CHECK_FALSE(woken);
    return EncodedCache::Value();
  };
  const EncodedCache::Key key{now->log.back()->Find(first), Codec::kTight};
  CHECK(now->encoded->Get(key, make, [] {}).value == nullptr);
  CHECK(woken);
  CHECK_FALSE(end.has_value());
  take();
  CHECK(came[first] == std::vector<uint64_t>{overtaken ? 3u : 2u});
  CHECK(end == StateId{1, overtaken ? 3u : 2u});
}

TEST_CASE("pull: over a link that is not known to be fast, no frame keeps the half") {
  PublishedModel sender(kChunks, 52);
  sender.Publish(1);
  sender.Publish(2);
  bool cut = false;
  sender.model()->SetCutter([&](uint32_t) { cut = true; });
  CoderRates rates;
  PullTerms terms = Terms(rates, 1);
  const bool fast = GENERATE(false, true);
  CAPTURE(fast);
  if (fast) terms.coding.link->AddFrame(uint64_t{1} << 30, false);
  ServedPull session(sender.model(), terms);
  if (fast) {
    sender.model()->SetCutter(
        [&](uint32_t half) { cut = session.CutIfReading(half, "by the test"); });
  }
  Receiver receiver(*sender.model());
  REQUIRE(session.Start(receiver.Have()).ok());
  session.StreamOpened(0, [] {});
  auto frame = session.Next(0, [] {});
  REQUIRE(frame.ok());
  REQUIRE((*frame)->header.type == wire::FrameType::kChunkFull);
  sender.Publish(3);
  if (fast) {
    // The socket still has the frame, whose bytes lie in version 2's half.
    session.StreamOpened(0, [&] { frame = absl::CancelledError("cut"); });
    sender.Publish(4);
    CHECK(cut);
    CHECK(absl::IsAborted(session.Next(0, [] {}).status()));
  } else {
    sender.Publish(4);
    CHECK(!cut);
    receiver.Apply(**frame);  // its bytes are still those of version 2
    while (receiver.ends().empty()) REQUIRE(receiver.Step(session, 0));
    CHECK(receiver.bytes() == sender.content(receiver.ends().front().version));
  }
}

TEST_CASE("pull: a late frame makes the next ones copies, and many in time end that") {
  LinkEstimate link;
  CHECK(link.slow(1));
  link.AddFrame(uint64_t{1} << 30, false);
  CHECK(!link.slow(4));
  link.AddFrame(2 << 20, true);
  CHECK(link.slow(1));
  link.AddFrame(2 << 20, false);
  CHECK(link.slow(1));
  for (int i = 0; i < 16; ++i) link.AddFrame(2 << 20, false);
  CHECK(!link.slow(1));
  CHECK(link.slow(4));  // the buffers of four sockets may have taken as much
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
  terms.suspects = {chunk};
  ServedPull session(sender.model(), terms);
  Receiver receiver(*sender.model());
  REQUIRE(session.Start(receiver.Have()).ok());
  if (rebuilt) {
    while (receiver.ends().empty()) REQUIRE(receiver.Step(session, 0));
    CHECK(receiver.bytes() == sender.content(2));
    CHECK(sender.model()->scrub().repaired == 1);
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

TEST_CASE("pull: idle streams are woken when there is something for them, and not before") {
  PublishedModel sender(kChunks, 54);
  sender.Publish(1);
  CoderRates rates;
  ServedPull session(sender.model(), Terms(rates, 3));
  Receiver receiver(*sender.model());
  CHECK(!receiver.Step(session, 1));
  CHECK(receiver.woken().empty());
  REQUIRE(session.Start(receiver.Have()).ok());
  CHECK(receiver.woken() == std::set<uint16_t>{1});
  for (uint32_t c = 0; c < kChunks; ++c) REQUIRE(receiver.Step(session, 0));
  receiver.woken().clear();
  sender.Publish(2, true);
  // Stream 0 has lifts to send. The others wait for it, and must not wake each other meanwhile.
  CHECK(!receiver.Step(session, 1));
  CHECK(!receiver.Step(session, 2));
  CHECK(!receiver.Step(session, 1));
  CHECK(receiver.woken().empty());
  while (receiver.ends().empty()) REQUIRE(receiver.Step(session, 0));
  CHECK(receiver.woken() == std::set<uint16_t>{1, 2});
  CHECK(receiver.Step(session, 1));
  CHECK(receiver.Step(session, 2));
  CHECK(receiver.bytes() == sender.content(2));
}

TEST_CASE("pull: what may be sent before the publish is bounded, and the publish brings the rest") {
  PublishedModel sender(kChunks, 56);
  sender.Publish(2);
  sender.PublishContent(3, [&] {
    auto content = sender.content(2);
    for (uint32_t c = 0; c < kChunks; ++c) content[c * 8192 + 3] ^= std::byte{1};
    return content;
  }());
  const auto three = sender.model()->published();
  const auto two = *sender.model()->At({.id = {1, 2}});
  Identity unwritten = three->info.identity;
  unwritten.root = 0;
  Receiver receiver(*sender.model());
  wire::Have base{.held = two->info.identity};
  for (const uint64_t digest : *two->digests) base.chunks.push_back({2, digest, 0});
  const auto incoming = std::make_shared<IncomingVersion>(unwritten, base, 1 << 20);
  const auto piece = [&](uint32_t c, bool whole) {
    const ChunkDelta& delta = *three->log.back()->Find(c);
    IncomingVersion::Piece p;
    p.header = {.type = whole ? wire::FrameType::kChunkFull : wire::FrameType::kChunkDelta,
                .chunk = c,
                .payload_bytes = static_cast<uint32_t>(whole ? 8192 : delta.payload.size()),
                .epoch = 1,
                .version = 3,
                .digest_before = whole ? 0 : delta.digest_before,
                .digest_after = delta.digest_after,
                .payload_xxh3 = whole ? 0 : delta.payload_xxh3};
    if (whole) {
      p.whole = sender.model()->half(three->half).subspan(c * 8192, 8192);
    } else {
      const auto bytes = std::make_shared<std::byte[]>(delta.payload.size());
      std::ranges::copy(delta.payload, bytes.get());
      p.payload = bytes;
    }
    return p;
  };
  const Delta& delta_to_three = *three->log.back();
  const size_t two_deltas =
      delta_to_three.Find(1)->payload.size() + delta_to_three.Find(2)->payload.size();

  CoderRates rates;
  PullTerms terms = Terms(rates, 1);
  terms.incoming = incoming;
  terms.ahead_bytes = two_deltas;
  const auto session = std::make_shared<ServedPull>(sender.model(), std::move(terms));
  incoming->Watch(session);
  for (uint32_t c = 0; c < kChunks; ++c) receiver.Set(c, sender.content(2));
  REQUIRE(session->Start(base).ok());
  CHECK_FALSE(receiver.Step(*session, 0));
  incoming->Add(piece(0, true));
  CHECK_FALSE(receiver.Step(*session, 0));
  incoming->Add(piece(1, false));
  CHECK(receiver.woken() == std::set<uint16_t>{0});
  incoming->Add(piece(2, false));
  incoming->Add(piece(3, false));
  CHECK(receiver.Step(*session, 0));
  CHECK(receiver.Step(*session, 0));
  CHECK_FALSE(receiver.Step(*session, 0));
  CHECK(session->bytes_ahead() == two_deltas);
  CHECK(receiver.whole() == 0);
  receiver.woken().clear();
  incoming->Settle(three);
  CHECK(receiver.woken() == std::set<uint16_t>{0});
  for (int n = 2; n < static_cast<int>(kChunks); ++n) REQUIRE(receiver.Step(*session, 0));
  CHECK(receiver.ends().empty());
  REQUIRE(receiver.Step(*session, 0));
  CHECK(receiver.ends() == std::vector<StateId>{{1, 3}});
  CHECK(receiver.bytes() == sender.content(3));
  CHECK(session->bytes_ahead() == two_deltas);
}

TEST_CASE(
    "pull: what is pulled while it is written ends at the newest, or there if that is asked") {
  const bool there = GENERATE(false, true);
  CAPTURE(there);
  PublishedModel sender(kChunks, 58);
  sender.Publish(2);
  sender.Publish(3);
  const auto three = sender.model()->published();
  const auto two = *sender.model()->At({.id = {1, 2}});
  Identity unwritten = three->info.identity;
  unwritten.root = 0;
  wire::Have base{.held = two->info.identity};
  for (const uint64_t digest : *two->digests) base.chunks.push_back({2, digest, 0});
  const auto incoming = std::make_shared<IncomingVersion>(unwritten, base, 1 << 20);
  Receiver receiver(*sender.model());
  for (uint32_t c = 0; c < kChunks; ++c) receiver.Set(c, sender.content(2));
  CoderRates rates;
  PullTerms terms = Terms(rates, 1);
  terms.incoming = incoming;
  terms.ends_at_incoming = there;
  const auto session = std::make_shared<ServedPull>(sender.model(), std::move(terms));
  incoming->Watch(session);
  REQUIRE(session->Start(base).ok());
  CHECK_FALSE(receiver.Step(*session, 0));
  incoming->Settle(three);
  // Two versions are published before the stream looks.
  for (const uint64_t version : {4, 5}) {
    sender.Publish(version);
    session->Overtaken(*sender.model()->published());
  }
  while (receiver.ends().empty()) REQUIRE(receiver.Step(*session, 0));
  const uint64_t end = there ? 3 : 5;
  CHECK(receiver.ends() == std::vector<StateId>{{1, end}});
  CHECK(receiver.bytes() == sender.content(end));
}

TEST_CASE("pull: a stream that never comes ends the others with the ticket's life") {
  PublishedModel sender(kChunks, 55);
  sender.Publish(1);
  CoderRates rates;
  ServedPull session(sender.model(), Terms(rates, 2));
  REQUIRE(session.Reserve(1, 2).ok());
  bool cut = false;
  session.StreamOpened(1, [&] { cut = true; });
  const auto now = SteadyClock::now();
  CHECK(!session.CutIfLate(now));
  CHECK(session.CutIfLate(now + std::chrono::seconds(60)));
  CHECK(cut);
  CHECK(absl::IsDeadlineExceeded(session.Next(1, [] {}).status()));
  session.StreamClosed(1, absl::CancelledError("closed"));
  CHECK(session.Finished(now));
}

TEST_CASE("pull: when all streams are there, a Have has the time that a slow link needs for it") {
  PublishedModel sender(kChunks, 55);
  sender.Publish(1);
  CoderRates rates;
  PullTerms terms = Terms(rates, 1);
  const auto life = SteadyClock::now() + terms.ticket_life;
  ServedPull session(sender.model(), terms);
  REQUIRE(session.Reserve(0, 1).ok());
  session.StreamOpened(0, [] {});
  const auto needs = std::chrono::duration<double>(
      static_cast<double>(wire::HaveBytes(session.chunks(), wire::kMaxHistory)) / (64 << 10));
  const auto most = std::chrono::duration_cast<SteadyClock::duration>(needs);
  CHECK(!session.CutIfLate(life + most / 2));
  CHECK(session.CutIfLate(life + most + std::chrono::minutes(1)));
}

}  // namespace
}  // namespace deltawire::sender
