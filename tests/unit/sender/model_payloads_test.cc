// A version whose changes the trainer's GPU has diffed, at a Model: what it takes, what it
// publishes and what it says afterwards.
#include <catch2/catch.hpp>

#include "tests/unit/kernels/kernel_data.h"
#include "tests/unit/sender/sender_model.h"

namespace deltawire::sender::model_payloads_test {
namespace {

/// A trainer that writes what has changed since the version before as payloads.
class Diffing {
 public:
  explicit Diffing(SenderModel& m) : m_(m) {}

  /// `spoil`: a bit of the payloads is flipped.
  StatusOr<VersionInfo> Publish(uint64_t version, uint64_t from, bool spoil = false) {
    DW_ASSIGN_OR_RETURN(const OffloadGrant grant, m_.Begin(version));
    CHECK(grant.takes_payloads);
    CHECK(grant.published.id.version == from);
    WrittenNotice notice;
    const std::vector<std::byte> before = SenderModel::Content(from),
                                 after = SenderModel::Content(version);
    // All chunks but the scalar's, which is smaller than its payload.
    const uint32_t last = m_->chunks().size() - 1;
    for (uint32_t c = 0; c < last; ++c) {
      const Chunk& chunk = m_->chunks()[c];
      const Bytes now = Bytes(after).subspan(chunk.offset, chunk.bytes);
      const kernels::test::Buffer payload =
          kernels::test::Encode(kernels::Scalar(), m_->key(),
                                Bytes(before).subspan(chunk.offset, chunk.bytes), now, chunk.width);
      std::vector<std::byte> bytes(payload.data(), payload.data() + payload.size());
      if (spoil && !bytes.empty()) bytes.back() ^= std::byte{1};
      if (!bytes.empty()) m_.Write(grant, chunk.offset, bytes);
      notice.payloads.push_back({c, 0, chunk.bytes, static_cast<uint32_t>(bytes.size()),
                                 kernels::Scalar().digest(m_->key(), now)});
    }
    m_.Write(grant, m_->chunks()[last].offset,
             {after.end() - m_->chunks()[last].bytes, after.end()});
    notice.chunks = {last};
    notice.chunk_bytes = {m_->chunks()[last].bytes};
    DW_RETURN_IF_ERROR(m_->offloads().MarkWritten(grant.lease, notice));
    ReadyNotice ready{version, 0, 1, grant.lease, true, {}, {}, "the trainer's GPU"};
    DW_RETURN_IF_ERROR(m_->offloads().MarkReady(ready).status());
    return WaitPublished(m_->offloads(), version, grant.lease, NeverGone);
  }

 private:
  SenderModel& m_;
};

WrittenNotice Payload(DiffedChunk payload) {
  WrittenNotice notice;
  notice.payloads = {payload};
  return notice;
}

TEST_CASE("a version comes as payloads, and the next ones too") {
  const bool eager = GENERATE(false, true);
  CAPTURE(eager);
  SenderOptions options;
  options.early = eager ? Early::kSend : Early::kOff;
  SenderModel m(options);
  const auto first = m.Begin(1, "test", 0, 7);
  REQUIRE(first.ok());
  CHECK_FALSE(first->takes_payloads);  // there is nothing that they could be changes of
  REQUIRE(m->offloads().Abandon(first->lease, 0, "only asked").ok());
  REQUIRE(m.Publish(1).ok());
  CHECK(m->offloads().diff().diffs_on().empty());
  Diffing trainer(m);
  for (uint64_t version = 2; version < 6; ++version) {
    CAPTURE(version);
    const auto info = trainer.Publish(version, version - 1);
    INFO(info.status());
    REQUIRE(info.ok());
    CHECK(m.Holds(version));
    CHECK(info->changed_elements == 4);
    CHECK(m->offloads().diff().diffs_on() == "the trainer's GPU");
    CHECK(m->published()->log.back()->chunks().size() == m->chunks().size());
  }
  // Whole bytes go in between, and a restart does not matter.
  REQUIRE(m.Publish(6).ok());
  CHECK(m->offloads().diff().diffs_on().empty());
  m.Restart();
  REQUIRE(trainer.Publish(7, 6).ok());
  CHECK(m.Holds(7));
  REQUIRE(m->publisher().RollBack(6).ok());
  CHECK(m.Holds(6));
}

TEST_CASE("after a wrong payload the version before stays, and payloads are not taken any more") {
  SenderModel m;
  REQUIRE(m.Publish(1).ok());
  Diffing trainer(m);
  REQUIRE(trainer.Publish(2, 1).ok());
  const auto wrong = trainer.Publish(3, 2, true);
  CHECK(absl::IsAborted(wrong.status()));
  CHECK(MessageOf(wrong.status()).find("as a newer version") != std::string::npos);
  CHECK(m.Holds(2));
  const auto next = m.Begin(4, "test", 0, 7);
  REQUIRE(next.ok());
  CHECK_FALSE(next->takes_payloads);
  REQUIRE(m->offloads().Abandon(next->lease, 0, "only asked").ok());
  REQUIRE(m.Publish(4).ok());
  CHECK(m.Holds(4));
  m.Restart();
  REQUIRE(trainer.Publish(5, 4).ok());
  CHECK(m.Holds(5));
}

TEST_CASE("payloads of a first version end it") {
  SenderModel m;
  const auto grant = m.Begin(1);
  REQUIRE(grant.ok());
  REQUIRE(m->offloads().MarkWritten(grant->lease, Payload({0, 0, 2 << 20, 20, 7})).ok());
  REQUIRE(m.Ready(*grant, 1).ok());
  CHECK(absl::IsAborted(WaitPublished(m->offloads(), 1, grant->lease, NeverGone).status()));
  CHECK(m->published() == nullptr);
}

}  // namespace
}  // namespace deltawire::sender::model_payloads_test
