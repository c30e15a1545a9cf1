// Pull rounds step by step, with agents in memory: what a round commits, what it refuses, and what
// a broken round spares the next one. No sockets.
#include "receiver/pull/pull_round.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/unit/receiver/pull/round_rig.h"

namespace deltawire::receiver::pull_round_test {
namespace {

using Step = PullRound::Step;
constexpr Hash128 kOther{15, 16};

void Break(StatusOr<net::PullEnd>& end) { end = absl::UnavailableError("the stream broke"); }

bool Says(const Status& status, std::string_view words) {
  return MessageOf(status).find(words) != std::string_view::npos;
}

TEST_CASE("pull round: nothing is committed before the last step and then the end's state is") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  RoundRig s(1, buffers);
  const auto first = FakeAgent::Make(s.layout, 1);
  s.Publish({1, 1}, first);
  const auto round = s.Round(s.Newest());
  for (const Step next : {Step::kTransfer, Step::kApply, Step::kCommit}) {
    REQUIRE(round->Advance() == absl::OkStatus());
    CHECK(round->step() == next);
    CHECK(s.buffer->committed().empty());
    CHECK_FALSE(std::filesystem::exists(s.weights()));
  }
  REQUIRE(s.Run(*round) == absl::OkStatus());
  const Identity one = s.at().agent.identity();
  CHECK(s.Holds(one, first));
  CHECK(round->whole() == one);
  CHECK(round->stats().chunks_full == first.size());
  CHECK(round->bytes_expected() == s.layout.total_bytes());
  CHECK(s.progress[0] == s.layout.total_bytes());
  CHECK(round->Advance() == absl::OkStatus());  // there is nothing left to do

  const auto second = FakeAgent::Step(first, 2);
  s.Publish({1, 2}, second);
  const auto by_delta = s.Round(s.Newest());
  REQUIRE(s.Run(*by_delta) == absl::OkStatus());
  CHECK(s.Holds(s.at().agent.identity(), second));
  CHECK(s.at().haves.back().held == one);
  CHECK(by_delta->stats().chunks_full == 0);
  const uint64_t changed = by_delta->stats().chunks_delta;
  CHECK(by_delta->stats().chunks_unchanged == first.size() - changed);
  CHECK(s.at().agent.counts().chunks_delta == changed);
  // The round asks for nothing that is known of the model already.
  CHECK(s.at().agent.counts().describes == 0);
  CHECK(s.at().agent.counts().side_files == 1);
}

TEST_CASE("pull round: an agent that has gone on is asked for the version that all have") {
  RoundRig s(2);
  const auto first = FakeAgent::Make(s.layout, 1), second = Changed(first, 2);
  s.Publish({1, 1}, first);
  REQUIRE(s.Pull() == absl::OkStatus());
  s.Publish({1, 2}, second);
  const Follower::Target target = s.Newest();
  s.at(0).agent.Publish({1, 3}, Changed(second, 3), 1003);
  SECTION("and sends it") {
    REQUIRE(s.Run(*s.Round(target)) == absl::OkStatus());
    CHECK(s.Holds(target.whole, second));
  }
  SECTION("and is refused when it sends its newest though that is whole") {
    s.at(0).ignores_target = true;
    const Status refused = s.Run(*s.Round(target));
    CHECK(refused.code() == StatusCode::kDataLoss);
    CHECK(Says(refused, "s0"));
    CHECK(s.buffer->committed().id == StateId{1, 1});
    CHECK(EndsIn(s.weights(), first));
    // What s0 sent is kept, and is used as soon as s1 has that version too.
    const uint64_t moved = s.moved(0);
    s.at(1).agent.Publish({1, 3}, Changed(second, 3), 1003);
    REQUIRE(s.Pull() == absl::OkStatus());
    CHECK(s.Holds(s.Newest().whole, Changed(second, 3)));
    CHECK(s.moved(0) == moved);
  }
  SECTION("and nothing runs when it cannot") {
    s.at(1).agent.Publish({1, 2}, FakeAgent::Make(s.layout, 7), 77);  // given up there, and redone
    const Status refused = s.Run(*s.Round(target));
    CHECK(refused.code() == StatusCode::kAborted);
    CHECK(s.at(0).haves.size() == 1);
    CHECK(s.at(1).haves.size() == 1);
    CHECK(s.buffer->committed().id == StateId{1, 1});
  }
}

TEST_CASE("pull round: parts of different attempts or states never meet in a commit") {
  using Edit = void (*)(Identity&);
  const Edit edits[] = {
      [](Identity& end) { ++end.attempt; },    [](Identity& end) { end.attempt = 0; },
      [](Identity& end) { ++end.id.version; }, [](Identity& end) { ++end.id.epoch; },
      [](Identity& end) { ++end.root; },       [](Identity& end) { end.lineage = kOther; },
      [](Identity& end) { end = {}; },
  };
  const size_t edit = GENERATE(range(size_t{0}, size_t{7}));
  CAPTURE(edit);
  RoundRig s(2);
  const auto first = FakeAgent::Make(s.layout, 1), second = Changed(first, 2);
  s.Publish({1, 1}, first);
  REQUIRE(s.Pull() == absl::OkStatus());
  const Identity before = s.buffer->committed();
  s.Publish({1, 2}, second, 200);
  s.at(1).at_end = [&](StatusOr<net::PullEnd>& end) { edits[edit](end->identity); };
  const auto round = s.Round(s.Newest());
  const Status refused = s.Run(*round);
  CHECK(refused.code() == StatusCode::kDataLoss);
  CHECK(Says(refused, "s1"));
  // Parts that do not belong together are not even applied.
  CHECK(round->step() == Step::kTransfer);
  CHECK(s.Holds(before, first));
  CHECK(s.config() == "{\"side\": 100}");
  s.at(1).at_end = nullptr;
  REQUIRE(s.Pull() == absl::OkStatus());
  CHECK(s.Holds(s.Newest().whole, second));
  CHECK(s.moved(0) == 6);
  CHECK(s.moved(1) == 6);
}

TEST_CASE("pull round: a part of what is written comes when its agent has told of it") {
  RoundRig s(2);
  const auto first = FakeAgent::Make(s.layout, 1), second = Changed(first, 2);
  s.Publish({1, 1}, first);
  REQUIRE(s.Pull() == absl::OkStatus());
  const Identity before = s.buffer->committed();
  s.Publish({1, 2}, second);
  Follower::Target target = s.Newest();
  target.incoming = true;
  target.root_known = false;
  target.whole.root = target.parts[0].root = target.parts[1].root = 0;
  target.awaited = {1};
  s.stream_timeout = std::chrono::milliseconds(50);
  const auto round = s.Round(target);
  const auto opened = [&] { return s.at(1).haves.size() - 1; };
  SECTION("while the other one is sending") {
    s.at(0).on_run = [&] {
      CHECK(opened() == 0);
      round->Announce(1);
    };
    REQUIRE(s.Run(*round) == absl::OkStatus());
    CHECK(s.Holds(s.Newest().whole, second));
  }
  SECTION("soon after the other one has sent all") {
    s.stream_timeout = std::chrono::seconds(30);
    const auto patient = s.Round(target);
    std::thread teller;
    s.at(0).at_end = [&](StatusOr<net::PullEnd>&) {
      teller = std::thread([&] { patient->Announce(1); });
    };
    const Status ended = s.Run(*patient);
    teller.join();
    REQUIRE(ended == absl::OkStatus());
    CHECK(s.Holds(s.Newest().whole, second));
  }
  SECTION("and is not waited for without end when the other one has sent all") {
    const Status ended = s.Run(*round);
    CHECK(absl::IsAborted(ended));
    CHECK(Says(ended, "s1 has not published its part of version 2 yet"));
    CHECK(opened() == 0);
    CHECK(s.Holds(before, first));
    const uint64_t moved = s.moved(0);
    REQUIRE(s.Pull() == absl::OkStatus());
    CHECK(s.Holds(s.Newest().whole, second));
    CHECK(s.moved(0) == moved);
  }
  SECTION("and is not waited for when the other one breaks") {
    s.at(0).at_end = Break;
    const Status ended = s.Run(*round);
    CHECK(absl::IsUnavailable(ended));
    CHECK(Says(ended, "the stream broke"));
    CHECK(opened() == 0);
  }
  SECTION("and is not waited for when the pull is ended") {
    s.at(0).on_run = [&] { round->Cancel(); };
    CHECK(absl::IsCancelled(s.Run(*round)));
    CHECK(opened() == 0);
  }
}

/// A round to a second version that was not published when it was chosen.
std::unique_ptr<PullRound> UnwrittenRound(RoundRig& s) {
  const auto first = FakeAgent::Make(s.layout, 1);
  s.Publish({1, 1}, first);
  REQUIRE(s.Pull() == absl::OkStatus());
  s.Publish({1, 2}, Changed(first, 2));
  Follower::Target target = s.Newest();
  target.incoming = true;
  target.root_known = false;
  target.whole.root = target.parts[0].root = 0;
  return s.Round(target);
}

TEST_CASE("pull round: what comes before its publish took no time to transfer after it") {
  RoundRig s;
  const auto round = UnwrittenRound(s);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // before its first step
  REQUIRE(s.Run(*round) == absl::OkStatus());
  CHECK(round->times().ahead >= 0.002);
  CHECK(round->times().transfer == 0);
  CHECK(round->stats().transfer_seconds == 0);
}

TEST_CASE("pull round: bytes that had come at the publish were ahead of it, and no more") {
  RoundRig s;
  const auto round = UnwrittenRound(s);
  uint64_t said = 17;
  SECTION("less than all") {}
  SECTION("more than came") { said = uint64_t{1} << 40; }
  s.at().on_run = [&] { round->MarkPublished(said); };
  REQUIRE(s.Run(*round) == absl::OkStatus());
  const PullStats& stats = round->stats();
  CHECK(stats.ahead_bytes == std::min(said, stats.payload_bytes));
  CHECK(stats.transfer_seconds == round->times().transfer);
}

TEST_CASE("pull round: an end at nothing is no state") {
  RoundRig s;
  s.Publish({1, 1}, FakeAgent::Make(s.layout, 1));
  s.at().at_end = [](StatusOr<net::PullEnd>& end) { end->identity = {}; };
  const Status refused = s.Pull();
  CHECK(refused.code() == StatusCode::kDataLoss);
  CHECK(Says(refused, "ended at no version"));
  CHECK(s.buffer->committed().empty());
}

TEST_CASE("pull round: each part is compared with its own root and not only their sum") {
  RoundRig s(2);
  const auto first = FakeAgent::Make(s.layout, 1);
  s.Publish({1, 1}, first);
  Follower::Target target = s.Newest();
  for (Identity& part : target.parts) part.root = 0;  // the roots are not known yet
  const bool wrong = GENERATE(true, false);
  CAPTURE(wrong);
  if (wrong) {
    s.at(0).at_end = [](StatusOr<net::PullEnd>& end) { end->identity.root += 5; };
    s.at(1).at_end = [](StatusOr<net::PullEnd>& end) { end->identity.root -= 5; };
  }
  const auto round = s.Round(target);
  CHECK(s.Run(*round).code() == (wrong ? StatusCode::kDataLoss : StatusCode::kOk));
  CHECK(round->root_mismatch() == wrong);
  CHECK(s.buffer->committed() == (wrong ? Identity{} : s.Newest().whole));
}

TEST_CASE("pull round: chunks that do not make up the end's root are not committed") {
  const uint32_t buffers = GENERATE(1u, 2u);
  const bool left_out = GENERATE(true, false);
  CAPTURE(buffers, left_out);
  RoundRig s(1, buffers);
  const auto first = FakeAgent::Make(s.layout, 1), second = Changed(first, 2);
  s.Publish({1, 1}, first);
  REQUIRE(s.Pull() == absl::OkStatus());
  const Identity before = s.buffer->committed();
  s.Publish({1, 2}, second);
  if (left_out) {
    s.at().agent.Set([](FakeAgent::Faults& f) { f.leave_out = {2}; });
  } else {
    s.at().at_end = [](StatusOr<net::PullEnd>& end) { ++end->identity.root; };
  }
  const auto round = s.Round(s.Newest());
  const Status refused = s.Run(*round);
  CHECK(refused.code() == StatusCode::kDataLoss);
  CHECK(Says(refused, "s0"));
  CHECK(round->root_mismatch());
  CHECK(s.HoldsAtMost(before, first));
  s.at().agent.Set([](FakeAgent::Faults& f) { f.leave_out.clear(); });
  s.at().at_end = nullptr;
  REQUIRE(s.Pull() == absl::OkStatus());
  CHECK(s.Holds(s.at().agent.identity(), second));
  CHECK(s.at().agent.counts().chunks_full == 6);
  // With left_out, one of them came in the second pull.
  CHECK(s.at().agent.counts().chunks_delta == 6);
}

TEST_CASE("pull round: a chunk with wrong bytes is asked for again of its agent alone") {
  RoundRig s(2);
  const auto first = FakeAgent::Make(s.layout, 1);
  s.Publish({1, 1}, first);
  s.at(1).agent.Set([](FakeAgent::Faults& f) { f.flip[3] = 1; });
  const auto round = s.Round(s.Newest());
  REQUIRE(s.Run(*round) == absl::OkStatus());
  CHECK(s.Holds(s.Newest().whole, first));
  CHECK(round->stats().repaired_chunks == 1);
  CHECK(s.at(0).agent.counts().opens == 1);
  CHECK(s.at(1).agent.counts().corrupt ==
        std::vector<std::vector<uint32_t>>{{}, std::vector<uint32_t>{3}});
  CHECK(s.moved(0) == 3);
  CHECK(s.moved(1) == 4);
  const auto& again = s.at(1).haves.back().chunks;
  for (uint32_t c = 0; c < again.size(); ++c) {
    CAPTURE(c);
    CHECK((again[c].version == kVersionUnknown) == (c == 3));
  }
}

TEST_CASE("pull round: a chunk that never comes right ends it and what came right stays") {
  RoundRig s;
  const auto first = FakeAgent::Make(s.layout, 1);
  s.Publish({1, 1}, first);
  s.at().agent.Set([](FakeAgent::Faults& f) { f.flip[3] = 1000; });
  const auto round = s.Round(s.Newest());
  const Status refused = s.Run(*round);
  CHECK(refused.code() == StatusCode::kDataLoss);
  CHECK(Says(refused, "tensor t3"));
  CHECK_FALSE(round->root_mismatch());
  CHECK(s.at().agent.counts().opens == 1 + PullRound::kMaxRepairs);
  CHECK(s.buffer->committed().empty());
  CHECK_FALSE(std::filesystem::exists(s.weights()));
  const uint64_t moved = s.moved();
  s.at().agent.Set([](FakeAgent::Faults& f) { f.flip.clear(); });
  REQUIRE(s.Pull() == absl::OkStatus());
  CHECK(s.Holds(s.at().agent.identity(), first));
  CHECK(s.moved() == moved + 1);
}

TEST_CASE("pull round: a repair that ends at a newer version commits that with its side files") {
  RoundRig s;
  const auto first = FakeAgent::Make(s.layout, 1), second = Changed(first, 2);
  s.Publish({1, 1}, first, 100);
  s.at().agent.Set([](FakeAgent::Faults& f) { f.flip[3] = 1; });
  s.at().at_end = [&](StatusOr<net::PullEnd>&) {
    if (s.at().haves.size() == 1) s.Publish({1, 2}, second, 200);
  };
  const auto round = s.Round(s.Newest());
  REQUIRE(s.Run(*round) == absl::OkStatus());
  CHECK(s.at().haves.size() == 2);
  CHECK(round->results()[0].end.id == StateId{1, 2});
  CHECK(s.Holds(s.at().agent.identity(), second));
  CHECK(s.config() == "{\"side\": 200}");
}

TEST_CASE("pull round: what came before a stream broke is not asked for again") {
  const uint32_t buffers = GENERATE(1u, 2u);
  const bool whole = GENERATE(true, false);
  CAPTURE(buffers, whole);
  RoundRig s(2, buffers);
  const auto first = FakeAgent::Make(s.layout, 1), second = Changed(first, 2);
  if (!whole) {
    s.Publish({1, 1}, first);
    REQUIRE(s.Pull() == absl::OkStatus());
  }
  const Identity before = s.buffer->committed();
  const uint64_t base = s.moved(0);
  s.Publish({1, 2}, second);
  s.at(1).break_at = 3;
  const Status broken = s.Pull();
  CHECK(broken.code() == StatusCode::kUnavailable);
  CHECK(Says(broken, "s1"));
  CHECK(s.buffer->committed() == before);
  CHECK(s.moved(0) == base + 3);  // the part of s0 came to its end
  CHECK(s.moved(1) == base + 2);
  s.at(1).break_at = kNoChunk;
  REQUIRE(s.Pull() == absl::OkStatus());
  CHECK(s.Holds(s.Newest().whole, second));
  CHECK(s.moved(0) == base + 3);
  CHECK(s.moved(1) == base + 4);  // chunk 3, which had broken off, and chunk 4
  CHECK(s.at(1).agent.counts().chunks_delta == (whole ? 0 : 4));
  const auto& have = s.at(1).haves.back().chunks;
  for (const uint32_t c : {0u, 1u, 2u, 5u}) CHECK(have[c].version == 2);
  for (const uint32_t c : {3u, 4u}) CHECK(have[c].version == (whole ? kVersionUnknown : 1));
}

TEST_CASE("pull round: a newer version goes on from what a broken round left") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  RoundRig s(1, buffers);
  const auto first = FakeAgent::Make(s.layout, 1), second = Changed(first, 2);
  s.Publish({1, 1}, first);
  REQUIRE(s.Pull() == absl::OkStatus());
  const Identity before = s.buffer->committed();
  s.Publish({1, 2}, second);
  s.at().at_end = Break;
  CHECK(s.Pull().code() == StatusCode::kUnavailable);
  CHECK(s.Holds(before, first));
  s.at().at_end = nullptr;
  auto third = second;
  third[4][0] ^= std::byte{1};
  s.Publish({1, 3}, third);
  REQUIRE(s.Pull() == absl::OkStatus());
  CHECK(s.Holds(s.at().agent.identity(), third));
  const wire::Have& have = s.at().haves.back();
  CHECK(have.held == before);
  for (const auto& entry : have.chunks) CHECK(entry.version == 2);
  CHECK(s.at().agent.counts().chunks_full == 6);
  CHECK(s.at().agent.counts().chunks_delta == 6 + 1);
}

TEST_CASE("pull round: a full pull claims to hold nothing and may go back to an older version") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  RoundRig s(2, buffers);
  const auto first = FakeAgent::Make(s.layout, 1), second = Changed(first, 2);
  s.Publish({1, 1}, first);
  const Follower::Target one = s.Newest();
  REQUIRE(s.Pull() == absl::OkStatus());
  s.Publish({1, 2}, second);
  s.at(1).at_end = Break;  // leaves staged deltas, which a full pull must not use
  CHECK_FALSE(s.Pull().ok());
  s.at(1).at_end = nullptr;
  const uint64_t moved[] = {s.moved(0), s.moved(1)};
  s.at(0).agent.Set([](FakeAgent::Faults& f) { f.flip[1] = 1; });
  REQUIRE(s.PullFull(one) == absl::OkStatus());
  CHECK(s.Holds(one.whole, first));
  CHECK(s.moved(0) == moved[0] + 4);  // three chunks, and the repair of one
  CHECK(s.moved(1) == moved[1] + 3);
  const wire::Have& have = s.at(1).haves.back();
  CHECK(have.held.empty());
  for (const auto& entry : have.chunks) CHECK(entry.version == kVersionUnknown);
  REQUIRE(s.PullFull(one) == absl::OkStatus());  // every byte is written again as it was
  CHECK(s.Holds(one.whole, first));
  CHECK_FALSE(s.buffer->update().begun());
}

TEST_CASE("pull round: a state that is older than what was held is not taken") {
  RoundRig s(1, 1);
  const bool says = GENERATE(true, false);  // else only the end of the pull shows it
  CAPTURE(says);
  s.at().says_newest = says;
  s.Publish({1, 1}, FakeAgent::Make(s.layout, 1));
  const Follower::Target one = s.Newest();
  Identity later = one.whole;
  later.id = {2, 1};  // what the buffer was before an update broke off, as a relay behind has not
  const auto round = s.Round(one, false, later);
  const Status refused = s.Run(*round);
  CHECK(absl::IsUnavailable(refused));
  CHECK(MessageOf(refused).find("is behind version 1 (epoch 2)") != std::string::npos);
  CHECK(s.buffer->committed().empty());
  CHECK((s.moved() == 0) == says);
  REQUIRE(s.Run(*s.Round(one, false, one.whole)) == absl::OkStatus());
  CHECK(s.buffer->committed() == one.whole);
}

TEST_CASE("pull round: one that is cancelled runs nothing more and commits nothing") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  RoundRig s(2, buffers);
  const auto first = FakeAgent::Make(s.layout, 1);
  s.Publish({1, 1}, first);
  const auto round = s.Round(s.Newest());
  uint64_t moved = 0;
  SECTION("before the transfer") {
    REQUIRE(round->Advance() == absl::OkStatus());
    round->Cancel();
    CHECK(round->Advance().code() == StatusCode::kCancelled);
    CHECK(s.at(0).haves.size() + s.at(1).haves.size() == 0);
  }
  SECTION("while it runs") {
    s.at(1).agent.Set([&](FakeAgent::Faults& f) { f.before_end = [&] { round->Cancel(); }; });
    CHECK(s.Run(*round).code() == StatusCode::kCancelled);
    for (const size_t i : {0, 1}) CHECK(s.at(i).agent.counts().cancels == 1);
    moved = 6;  // what came stays
  }
  SECTION("while it runs though every stream has come to its end") {
    std::atomic<int> ended{0};
    for (const size_t i : {0, 1}) {
      s.at(i).at_end = [&](StatusOr<net::PullEnd>&) {
        if (++ended == 2) round->Cancel();
      };
    }
    CHECK(s.Run(*round).code() == StatusCode::kCancelled);
    CHECK(s.at(0).ended.size() + s.at(1).ended.size() == 2);
    moved = 6;
  }
  SECTION("before a repair") {
    s.at(1).agent.Set([&](FakeAgent::Faults& f) { f.flip[3] = 1; });
    for (int i = 0; i < 3; ++i) REQUIRE(round->Advance() == absl::OkStatus());
    REQUIRE(round->step() == Step::kOpen);
    round->Cancel();
    CHECK(s.Run(*round).code() == StatusCode::kCancelled);
    CHECK(s.at(1).haves.size() == 1);
    moved = 6;
  }
  // The round stays cancelled.
  CHECK(s.Run(*round).code() == StatusCode::kCancelled);
  CHECK(s.moved(0) + s.moved(1) == moved);
  CHECK(s.buffer->committed().empty());
  for (const size_t i : {0, 1}) s.at(i).at_end = nullptr;
  s.at(1).agent.Set([](FakeAgent::Faults& f) { f = {}; });
  REQUIRE(s.Pull() == absl::OkStatus());
  CHECK(s.Holds(s.Newest().whole, first));
  const uint64_t flipped = s.at(1).agent.counts().corrupt.size() == 3 ? 1 : 0;
  CHECK(s.moved(0) + s.moved(1) == 6 + flipped);
}

TEST_CASE("pull round: bytes are changed only once nobody reads them and deltas wait till then") {
  RoundRig s(1, 1);
  const auto first = FakeAgent::Make(s.layout, 1), second = Changed(first, 2);
  s.Publish({1, 1}, first);
  REQUIRE(s.Pull() == absl::OkStatus());
  const Identity before = s.buffer->committed();
  s.Publish({1, 2}, second);
  REQUIRE(s.gate.Hold(before, "engine"));
  s.gate.SetYielding(true);
  const auto round = s.Round(s.Newest());
  CHECK(s.Run(*round).code() == StatusCode::kCancelled);
  CHECK(round->step() == Step::kApply);
  CHECK(s.Holds(before, first));
  s.gate.Release("engine");
  s.gate.SetYielding(false);
  REQUIRE(s.Pull() == absl::OkStatus());
  CHECK(s.Holds(s.at().agent.identity(), second));
  CHECK(s.at().agent.counts().chunks_delta == 6);
}

TEST_CASE("pull round: a chunk of another agent's part is refused") {
  RoundRig s(2);
  const auto first = FakeAgent::Make(s.layout, 1);
  s.Publish({1, 1}, first);
  REQUIRE(s.Pull() == absl::OkStatus());
  s.Publish({1, 2}, Changed(first, 2));
  s.at(1).claims = 0;
  const Status refused = s.Pull();
  CHECK(refused.code() == StatusCode::kDataLoss);
  CHECK(Says(refused, "not of its part"));
  CHECK(s.buffer->committed().id == StateId{1, 1});
  s.at(1).claims = kNoChunk;
  REQUIRE(s.Pull() == absl::OkStatus());
  CHECK(s.Holds(s.Newest().whole, Changed(first, 2)));
}

TEST_CASE("pull round: only deltas from one whole state to the next become history") {
  const uint32_t buffers = GENERATE(1u, 2u);
  CAPTURE(buffers);
  RoundRig s(1, buffers);
  s.at().history = 4;
  auto chunks = FakeAgent::Make(s.layout, 1);
  const auto next = [&](uint64_t version) {
    s.Publish({1, version}, chunks = Changed(chunks, static_cast<uint8_t>(version)));
  };
  for (uint64_t v = 1; v < 4; ++v) {
    next(v);
    REQUIRE(s.Pull() == absl::OkStatus());
    CHECK(s.history.deltas() == v - 1);
  }
  CHECK(s.at().haves.back().history == std::vector<StateId>{{1, 1}});
  for (const auto& entry : s.at().haves.back().chunks) CHECK(entry.depth == 1);
  next(4);
  s.at().at_end = Break;
  CHECK_FALSE(s.Pull().ok());
  s.at().at_end = nullptr;
  next(5);
  REQUIRE(s.Pull() == absl::OkStatus());
  CHECK(s.Holds(s.at().agent.identity(), chunks));
  // The deltas of the two pulls led from version 3 to version 5, so no sender has the same ones.
  CHECK(s.history.deltas() == 0);
  CHECK(s.at().haves.back().history.empty());
}

TEST_CASE("pull round: an agent whose versions count otherwise is told of no history") {
  RoundRig s(2);
  for (const size_t i : {0, 1}) s.at(i).history = 4;
  auto chunks = FakeAgent::Make(s.layout, 1);
  for (uint64_t v = 1; v < 4; ++v) {
    chunks = Changed(chunks, static_cast<uint8_t>(v));
    s.at(0).agent.Publish({1, v}, chunks, v);
    s.at(1).agent.Publish({2, v}, chunks, v);  // one rollback more than s0
    REQUIRE(s.Pull() == absl::OkStatus());
    CHECK(s.buffer->committed().id == StateId{2, v});
  }
  CHECK(s.at(1).haves.back().history == std::vector<StateId>{{2, 1}});
  CHECK(s.at(0).haves.back().history.empty());
  for (const auto& entry : s.at(0).haves.back().chunks) CHECK(entry.depth == 0);
  CHECK(s.at(0).haves.back().held.id == StateId{1, 2});
  CHECK(s.at(1).haves.back().held.id == StateId{2, 2});
}

}  // namespace
}  // namespace deltawire::receiver::pull_round_test
