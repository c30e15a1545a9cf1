// How the chunks of a version that the trainer still writes are coded for the way, without sockets:
// by the rule of `auto`, once for all pulls; and what such a pull tells of its link.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <thread>

#include "tests/unit/sender/served_pull_rig.h"

namespace deltawire::sender::served_pull_ahead_test {
namespace {

using kernels::Codec;

constexpr size_t kTight = kernels::FormOf(Codec::kTight), kFast = kernels::FormOf(Codec::kFast);
// So slow that `tight` pays however slowly this machine encodes, as under a sanitizer.
constexpr double kSlowLink = 1e4;

/// Version 2 is published, and the trainer has written all of version 3.
class Written {
 public:
  explicit Written(uint32_t chunks = kChunks, bool everything = false) : sender_(chunks, 71) {
    std::mt19937_64 random(72);
    // Weights of one magnitude, some of which then move by one step, as an optimizer moves them.
    std::vector<std::byte> content(size_t{chunks} * 8192);
    for (size_t i = 0; i < content.size(); i += 2) {
      content[i] = static_cast<std::byte>(random());
      content[i + 1] = std::byte{0x3c};
    }
    sender_.PublishContent(2, content);
    model()->offloads().diff().incoming().SetListener([] { return true; }, [this] { ++told_; });
    const auto grant = model()->offloads().Begin({.version = 3}, [] { return false; });
    REQUIRE(grant.status() == absl::OkStatus());
    lease_ = grant->lease;
    for (size_t i = 0; i < content.size(); i += 2) {
      if (everything || random() % 32 == 0) content[i] ^= std::byte{1};
      if (everything) content[i + 1] = static_cast<std::byte>(random());
    }
    content_ = content;
    sender_.Write(grant->half_path, grant->data_offset, content_);
    WrittenNotice marked;
    for (uint32_t t = 0; t < chunks; ++t) marked.tensors.push_back(t);
    REQUIRE(model()->offloads().MarkWritten(lease_, marked) == absl::OkStatus());
    const auto deadline = SteadyClock::now() + std::chrono::seconds(30);
    while (told_ == 0 || !model()->offloads().incoming()->PieceAt(chunks - 1).piece) {
      REQUIRE(SteadyClock::now() < deadline);
      std::this_thread::yield();
    }
    incoming_ = model()->offloads().incoming();
    rates_.Calibrate(kernels::Best());
  }

  void Publish() {
    REQUIRE(model()->offloads().MarkReady({.version = 3, .lease = lease_, .wrote_all = true}).ok());
    REQUIRE(WaitPublished(model()->offloads(), 3, lease_, [] { return false; }).ok());
    while (told_ == 1) std::this_thread::yield();  // then pulls were told, too
  }

  const std::shared_ptr<Model>& model() { return sender_.model(); }
  IncomingVersion& incoming() { return *incoming_; }
  const std::vector<std::byte>& content() const { return content_; }

  /// `bytes_per_s`: what the link is known for; 0: it is not known.
  std::shared_ptr<ServedPull> Pull(double bytes_per_s) {
    PullTerms terms = Terms(rates_, 1);
    terms.coding.codec.reset();
    terms.coding.decode[Codec::kTight] = 1e9;
    if (bytes_per_s > 0) {
      terms.coding.link->Add(uint64_t{100} << 20, (100 << 20) / bytes_per_s, false);
    }
    link_ = terms.coding.link;
    terms.incoming = incoming_;
    auto session = std::make_shared<ServedPull>(model(), std::move(terms));
    incoming_->Watch(session);
    wire::Have base{.held = incoming_->news().base};
    for (const uint64_t digest : *model()->published()->digests) {
      base.chunks.push_back({2, digest, 0});
    }
    REQUIRE(session->Start(base).ok());
    return session;
  }
  LinkEstimate& link() { return *link_; }  ///< of the last pull
  std::unique_ptr<Receiver> AtVersionTwo() {
    auto receiver = std::make_unique<Receiver>(*model());
    for (uint32_t c = 0; c < model()->chunks().size(); ++c) receiver->Set(c, sender_.content(2));
    return receiver;
  }

 private:
  PublishedModel sender_;
  CoderRates rates_;
  std::shared_ptr<IncomingVersion> incoming_;
  std::shared_ptr<LinkEstimate> link_;
  std::vector<std::byte> content_;
  uint64_t lease_ = 0;
  std::atomic<int> told_{0};
};

}  // namespace

TEST_CASE("pull: over a link that auto takes for slow, what is sent early is tight, made once") {
  Written written;
  const auto slow = written.Pull(kSlowLink), other = written.Pull(kSlowLink);
  const auto fast = written.Pull(1e12), unknown = written.Pull(0);
  std::map<uint32_t, const std::byte*> payloads;
  for (const auto& session : {slow, other, fast, unknown}) {
    const auto receiver = written.AtVersionTwo();
    for (uint32_t n = 0; n < kChunks; ++n) {
      const auto frame = session->Next(0, [] {});
      REQUIRE(frame.ok());
      REQUIRE(frame->has_value());
      receiver->Apply(**frame);
      const auto [known, first] =
          payloads.try_emplace((*frame)->header.chunk, (*frame)->payload.data());
      if (session == other) CHECK((*frame)->payload.data() == known->second);
    }
    CHECK_FALSE(receiver->Step(*session, 0));
    CHECK(receiver->bytes() == written.content());
    const bool tight = session == slow || session == other;
    CHECK(session->tally().forms().chunks[kTight] == (tight ? kChunks : 0));
    CHECK(session->tally().forms().chunks[kFast] == (tight ? 0 : kChunks));
    CHECK(session->tally().bytes_ahead() == session->tally().bytes());
  }
  CHECK(slow->tally().bytes() < fast->tally().bytes());
  // What was encoded stays for other pulls, is in its metric, and not in that of what is published.
  CHECK(written.model()->offloads().diff().incoming().encoded().bytes ==
        slow->tally().bytes() + kChunks * EncodedCache::kEntryBytes);
  CHECK(written.model()->store().encoded().bytes == 0);
  written.Publish();
  const auto receiver = written.AtVersionTwo();
  CHECK(receiver->Step(*slow, 0));
  CHECK(receiver->ends() == std::vector<StateId>{{1, 3}});
}

TEST_CASE("pull: what is not sent early over a slow link is tight when it is published") {
  Written written;
  const auto session = written.Pull(kSlowLink);
  const auto receiver = written.AtVersionTwo();
  REQUIRE(receiver->Step(*session, 0));
  REQUIRE(receiver->Step(*session, 0));
  const uint64_t ahead = session->tally().bytes();
  written.Publish();
  while (receiver->ends().empty()) REQUIRE(receiver->Step(*session, 0));
  CHECK(receiver->bytes() == written.content());
  CHECK(session->tally().forms().chunks[kTight] == kChunks);
  CHECK(session->tally().bytes_ahead() == ahead);
}

TEST_CASE("pull: a chunk that another pull codes early is sent last, before or after the publish") {
  const bool published = GENERATE(false, true);
  CAPTURE(published);
  Written written;
  const auto session = written.Pull(kSlowLink);
  const auto receiver = written.AtVersionTwo();
  const auto piece = *written.incoming().PieceAt(0).piece;
  REQUIRE(piece.delta != nullptr);
  std::vector<uint32_t> order;
  const auto take = [&](size_t frames) {
    for (size_t n = 0; n < frames; ++n) {
      const auto next = session->Next(0, [] {});
      REQUIRE(next.status() == absl::OkStatus());
      REQUIRE(next->has_value());
      receiver->Apply(**next);
      order.push_back((*next)->header.chunk);
    }
  };
  const auto make = [&] {
    take(kChunks - 1);
    if (published) written.Publish();
    take(1);
    return EncodedCache::Value();
  };
  const EncodedCache::Key key{piece.delta.get(), Codec::kTight};
  auto& encoded = written.incoming().encoded();
  CHECK(encoded.Get(key, make, EncodedCache::IfBusy::kSkip).value == nullptr);
  CHECK(order.back() == piece.header.chunk);
  if (!published) written.Publish();
  CHECK(receiver->Step(*session, 0));
  CHECK(receiver->ends() == std::vector<StateId>{{1, 3}});
  CHECK(receiver->bytes() == written.content());
  CHECK(session->tally().forms().chunks[kTight] == kChunks);
}

TEST_CASE("pull: a payload that is gone again is not made of a half that may be written to") {
  Written written;
  const auto piece = *written.incoming().PieceAt(0).piece;
  REQUIRE(piece.delta != nullptr);
  CoderRates rates;
  rates.Calibrate(kernels::Best());
  const ChunkEncoder encoder(*written.model(), rates);
  ChunkPlan plan;
  plan.kind = ChunkPlan::Kind::kDelta;
  plan.chain = {piece.delta.get()};
  const kernels::History none;
  const ChunkPayload fast{Codec::kFast, piece.delta->payload, piece.delta->payload_xxh3,
                          piece.payload};
  const auto codec = [&](const LeasedState& base) {
    // Another pull had made the payload when this one chose the codec; here it is no more.
    EncodedCache empty(0);
    const ChunkEncoder::Job job{.chunk = piece.header.chunk,
                                .plan = plan,
                                .leased = base,
                                .history = none,
                                .incoming = &empty};
    const auto coded = encoder.Encode(Codec::kTight, job, fast);
    REQUIRE(coded.has_value());
    CHECK(empty.Has({piece.delta.get(), Codec::kTight}) == false);
    return coded->codec;
  };
  const LeasedState base = written.model()->Lease();
  REQUIRE(base.lease != nullptr);
  CHECK(codec(base) == Codec::kTight);
  CHECK(codec({base.state, nullptr}) == Codec::kFast);
  // The half of the state that the version has become has its bytes, not those before its delta.
  written.Publish();
  CHECK(codec(written.model()->Lease()) == Codec::kFast);
}

TEST_CASE(
    "pull: what the kernel sends while a stream waits for the trainer says little of a link") {
  // Of 256 KiB in whole chunks, 200 are still in the kernel when there is nothing more to send.
  constexpr uint32_t kMany = 32;
  const uint64_t left = GENERATE(0, 128 << 10);
  CAPTURE(left);
  Written written(kMany, /*everything=*/true);
  const auto session = written.Pull(0);
  const auto receiver = written.AtVersionTwo();
  for (uint32_t n = 0; n < kMany; ++n) REQUIRE(receiver->Step(*session, 0));
  CHECK_FALSE(receiver->Step(*session, 0));
  session->Waited(0, 200 << 10, left);
  written.Publish();
  REQUIRE(receiver->Step(*session, 0));
  REQUIRE_FALSE(receiver->ends().empty());
  session->StreamClosed(0, absl::OkStatus());
  CHECK((written.link().bytes_per_s() > 0) == (left > 0));
}

}  // namespace deltawire::sender::served_pull_ahead_test
