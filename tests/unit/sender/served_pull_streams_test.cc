// The streams of a pull, without sockets: which of them waits for what, whom it holds up meanwhile,
// and who is woken.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <thread>

#include "tests/unit/sender/served_pull_rig.h"

namespace deltawire::sender::served_pull_streams_test {
namespace {

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
  std::vector<uint32_t> order;
  const auto take = [&] {
    while (!end) {
      const auto next = session.Next(0, [] {});
      REQUIRE(next.status() == absl::OkStatus());
      if (!next->has_value()) return;
      const wire::FrameHeader& header = (*next)->header;
      if (header.type == wire::FrameType::kEnd) {
        end = {header.epoch, header.version};
      } else {
        came[header.chunk].push_back(header.version);
        order.push_back(header.chunk);
      }
      if (overtaken && order.size() == 1) {
        sender.Publish(3, true);
        session.Overtake(*sender.model()->published());
      }
    }
  };
  // Another pull makes the payload of the first chunk, while this one goes on.
  const auto make = [&] {
    take();
    return EncodedCache::Value();
  };
  const EncodedCache::Key key{now->log.back()->Find(first), Codec::kTight};
  CHECK(now->encoded->Get(key, make, EncodedCache::IfBusy::kSkip).value == nullptr);
  CHECK(end == StateId{1, overtaken ? 3u : 2u});
  // Planned anew, the chunk went out once, at the end's version; nobody else makes that payload.
  CHECK(came[first] == std::vector<uint64_t>{overtaken ? 3u : 2u});
  CHECK(order.front() != first);
  if (!overtaken) CHECK(order.back() == first);
  for (const auto& [chunk, versions] : came) CHECK(versions.back() == end->version);
  CHECK(came.size() == (overtaken ? kChunks : changes.size()));
}

TEST_CASE("pull: no pull ends before the chunk that a stream has postponed") {
  using kernels::Codec;
  PublishedModel sender(kChunks, 61);
  sender.Publish(1);
  const auto held = sender.model()->published();
  sender.Publish(2);
  const auto now = sender.model()->published();
  const auto& changes = now->log.back()->chunks();
  const uint32_t last = changes.back().chunk;
  CoderRates rates;
  wire::Have have;
  have.held = held->info.identity;
  for (const uint64_t digest : *held->digests) have.chunks.push_back({1, digest, 0});
  // All but one of the changed chunks are there.
  for (const auto& change : changes) {
    if (change.chunk != last) have.chunks[change.chunk] = {2, (*now->digests)[change.chunk], 0};
  }
  // Another pull makes the payload of that chunk, while both streams of this one ask.
  const auto make = [&] {
    for (int round = 0; round < 3000; ++round) {
      PullTerms terms = Terms(rates, 2);
      terms.coding.codec = Codec::kTight;
      ServedPull session(sender.model(), std::move(terms));
      REQUIRE(session.Start(have).ok());
      std::atomic<int> there{0};
      std::atomic<int> chunks{0};
      const auto ask = [&](uint16_t stream) {
        ++there;
        while (there < 2) std::this_thread::yield();
        const auto next = session.Next(stream, [] {});
        if (next.ok() && next->has_value()) {
          chunks += (*next)->header.type == wire::FrameType::kEnd ? 0 : 1;
        }
      };
      std::thread other(ask, uint16_t{1});
      ask(0);
      other.join();
      CAPTURE(round);
      REQUIRE(chunks == 1);
    }
    return EncodedCache::Value();
  };
  const EncodedCache::Key key{now->log.back()->Find(last), Codec::kTight};
  CHECK(now->encoded->Get(key, make, EncodedCache::IfBusy::kSkip).value == nullptr);
}

TEST_CASE("pull: over a link that is not known to be fast, no frame keeps the half") {
  PublishedModel sender(kChunks, 52);
  sender.Publish(1);
  sender.Publish(2);
  bool cut = false;
  sender.model()->offloads().diff().SetCutter([&](uint32_t) { cut = true; });
  CoderRates rates;
  PullTerms terms = Terms(rates, 1);
  const bool fast = GENERATE(false, true);
  CAPTURE(fast);
  if (fast) terms.coding.link->AddFrame(uint64_t{1} << 30, false);
  ServedPull session(sender.model(), terms);
  if (fast) {
    sender.model()->offloads().diff().SetCutter(
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
  terms.request.ahead_bytes = two_deltas;
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
  CHECK(session->tally().bytes_ahead() == two_deltas);
  CHECK(receiver.whole() == 0);
  receiver.woken().clear();
  incoming->Settle(three);
  CHECK(receiver.woken() == std::set<uint16_t>{0});
  for (int n = 2; n < static_cast<int>(kChunks); ++n) REQUIRE(receiver.Step(*session, 0));
  CHECK(receiver.ends().empty());
  REQUIRE(receiver.Step(*session, 0));
  CHECK(receiver.ends() == std::vector<StateId>{{1, 3}});
  CHECK(receiver.bytes() == sender.content(3));
  CHECK(session->tally().bytes_ahead() == two_deltas);
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
    session->Overtake(*sender.model()->published());
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
  CHECK(session.IsFinished(now));
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
}  // namespace deltawire::sender::served_pull_streams_test
