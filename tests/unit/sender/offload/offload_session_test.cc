// The offload's state machine: every allowed move, who may end whose offload, and the counting of
// bytes.
#include "sender/agent/offload/offload_session.h"

#include <catch2/catch.hpp>
#include <string>

namespace deltawire::sender::offload_session_test {
namespace {

using Phase = OffloadPhase;
using Next = OffloadSession::Next;
using Time = OffloadSession::Time;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kBig = 3 << 20;  // two chunks

/// A session over three tensors: "big" has the chunks 0 and 1, "small" has 2 and "scalar" has 3.
class Fixture {
 public:
  explicit Fixture(bool part = false, milliseconds timeout = milliseconds(1000))
      : layout_(*Layout::Create({{"big", DType::kI8, {kBig}},
                                 {"small", DType::kBF16, {50}},
                                 {"scalar", DType::kF32, {1}}})),
        chunks_(*ChunkTable::Create(layout_)),
        owned_(part ? *Coverage::Create(std::vector<ChunkRange>{{0, 3}}, 4)
                    : Coverage::All(chunks_.size())),
        session_({"m", part, timeout}, layout_, chunks_, owned_, 100) {}

  OffloadSession* operator->() { return &session_; }
  Time now() const { return now_; }
  void Pass(milliseconds time) { now_ += time; }
  void SetPublished(StateId id, uint64_t attempt = 9) {
    published_.id = id;
    published_.attempt = attempt;
  }
  const Identity& published() const { return published_; }

  static OffloadRequest Request(uint64_t version, uint32_t rank = 0, uint32_t world = 1,
                                const std::string& who = "", uint64_t attempt = 0) {
    const std::string name = who.empty() ? fmt::format("rank {}", rank) : who;
    return {version, rank, world, attempt, name, std::hash<std::string>()(name) | 1, "job"};
  }
  StatusOr<OffloadSession::Begun> Ask(const OffloadRequest& request) {
    return session_.Begin(request, published_, 77, now_);
  }
  /// Begins an offload, drains the half and attends. Returns the lease.
  uint64_t Begin(const OffloadRequest& request) {
    const auto begun = Ask(request);
    REQUIRE(begun.ok());
    REQUIRE(begun->next != Next::kWait);
    if (begun->next == Next::kDrain) session_.FinishDrain(begun->lease, absl::OkStatus(), 0, now_);
    REQUIRE(session_.Attend(begun->lease, request.rank).ok());
    return begun->lease;
  }
  StatusOr<bool> Ready(uint64_t lease, uint32_t rank = 0, uint32_t world = 1) {
    ReadyNotice notice{session_.current().version, rank, world, lease, true, {}, {}};
    return session_.MarkReady(notice, published_);
  }
  Status Count(uint64_t lease, uint32_t rank, std::vector<uint32_t> chunks,
               std::vector<uint32_t> bytes, std::vector<uint32_t>* whole = nullptr) {
    const auto final = session_.MarkWritten(
        lease, {.rank = rank, .chunks = std::move(chunks), .chunk_bytes = std::move(bytes)});
    if (final.ok() && whole != nullptr) *whole = final->chunks;
    return final.status();
  }

 private:
  const Layout layout_;
  const ChunkTable chunks_;
  const Coverage owned_;
  OffloadSession session_;
  Time now_{seconds(1000)};
  Identity published_;
};

bool Says(const Status& status, const std::string& part) {
  CAPTURE(status, part);
  const bool says = MessageOf(status).find(part) != std::string::npos;
  CHECK(says);
  return says;
}

/// Brings a session of one rank into a phase. Returns the lease, or 0 in kIdle.
uint64_t Into(Fixture& f, Phase phase) {
  if (phase == Phase::kIdle) return 0;
  const auto begun = f.Ask(Fixture::Request(5));
  REQUIRE(begun.ok());
  if (phase == Phase::kDraining) return begun->lease;
  f->FinishDrain(begun->lease, absl::OkStatus(), 0, f.now());
  REQUIRE(f->Attend(begun->lease, 0).ok());
  if (phase == Phase::kPublishing) REQUIRE(*f.Ready(begun->lease));
  return begun->lease;
}

}  // namespace

TEST_CASE("an offload's phases: each event leads from each phase where the table says") {
  struct Event {
    const char* name;
    void (*happen)(Fixture&, uint64_t lease);
    // the phase after it, by the phase before in this order: idle, draining, writing, publishing
    Phase after[4];
  };
  using enum OffloadPhase;
  const Event events[] = {
      {"begin of another process",
       [](Fixture& f, uint64_t) { (void)f.Ask(Fixture::Request(6, 0, 1, "another")); },
       {kDraining, kDraining, kWriting, kPublishing}},
      {"begin anew of the same process",
       [](Fixture& f, uint64_t) { (void)f.Ask(Fixture::Request(5)); },
       {kDraining, kDraining, kDraining, kPublishing}},
      {"drained",
       [](Fixture& f, uint64_t lease) { f->FinishDrain(lease, absl::OkStatus(), 0, f.now()); },
       {kIdle, kWriting, kWriting, kPublishing}},
      {"not drained",
       [](Fixture& f, uint64_t lease) {
         f->FinishDrain(lease, absl::UnavailableError("no"), 0, f.now());
       },
       {kIdle, kIdle, kWriting, kPublishing}},
      {"drained, of another lease",
       [](Fixture& f, uint64_t lease) { f->FinishDrain(lease + 1, absl::OkStatus(), 0, f.now()); },
       {kIdle, kDraining, kWriting, kPublishing}},
      {"ready",
       [](Fixture& f, uint64_t lease) { (void)f.Ready(lease); },
       {kIdle, kDraining, kPublishing, kPublishing}},
      {"gone",
       [](Fixture& f, uint64_t lease) { f->EndAttend(lease, 0, true, f.now()); },
       {kIdle, kDraining, kIdle, kPublishing}},
      {"abandoned by its rank",
       [](Fixture& f, uint64_t lease) { (void)f->Abandon(lease, 0, "why"); },
       {kIdle, kDraining, kIdle, kPublishing}},
      {"time is up",
       [](Fixture& f, uint64_t) {
         f.Pass(seconds(2));
         (void)f->Expire(f.now());
       },
       {kIdle, kDraining, kIdle, kPublishing}},
      {"rollback",
       [](Fixture& f, uint64_t) { (void)f->BeginRollback(3, 1, f.now()); },
       {kPublishing, kDraining, kWriting, kPublishing}},
      {"published",
       [](Fixture& f, uint64_t) { f->MarkPublished({}); },
       {kIdle, kDraining, kWriting, kIdle}},
      {"publish failed",
       [](Fixture& f, uint64_t) { f->FailPublish(absl::InternalError("disk")); },
       {kIdle, kDraining, kWriting, kIdle}},
  };
  for (const Event& event : events) {
    for (const Phase from : {kIdle, kDraining, kWriting, kPublishing}) {
      CAPTURE(event.name, static_cast<int>(from));
      Fixture f;
      const uint64_t lease = Into(f, from);
      event.happen(f, lease);
      CHECK(f->phase() == event.after[static_cast<size_t>(from)]);
    }
  }
}

TEST_CASE("a second publisher is refused and told who the first is") {
  Fixture f;
  f.Begin(Fixture::Request(5, 0, 1, "train.py, process 12 on a"));
  f.Pass(seconds(600));
  for (const uint64_t version : {5, 6, 4}) {
    const Status refused = f.Ask(Fixture::Request(version, 0, 1, "publish, process 13")).status();
    CHECK(absl::IsFailedPrecondition(refused));
    Says(refused, "train.py, process 12 on a");
    Says(refused, "rank 0 of 1");
    Says(refused, "10.0 min");
  }
  // A client of the same name is not the same client.
  OffloadRequest namesake = Fixture::Request(5, 0, 1, "train.py, process 12 on a");
  namesake.client = 2;
  CHECK(absl::IsFailedPrecondition(f.Ask(namesake).status()));
  // A client that asks again has given up its former offload.
  const auto again = f.Ask(Fixture::Request(5, 0, 1, "train.py, process 12 on a"));
  REQUIRE(again.ok());
  CHECK(again->next == Next::kDrain);
}

TEST_CASE("without a number nobody is taken for the same client") {
  Fixture f;
  OffloadRequest request = Fixture::Request(5);
  request.client = 0;
  f.Begin(request);
  CHECK(absl::IsFailedPrecondition(f.Ask(request).status()));
}

TEST_CASE("an offload that nobody holds makes way") {
  Fixture f(false, milliseconds(0));
  const auto begun = f.Ask(Fixture::Request(5, 0, 2));
  f->FinishDrain(begun->lease, absl::OkStatus(), 0, f.now());
  // The half has just been granted, so its rank may be about to attend.
  CHECK(absl::IsFailedPrecondition(f.Ask(Fixture::Request(5, 0, 1, "b")).status()));
  SECTION("it never attended") {
    f.Pass(seconds(10));
    CHECK(f.Ask(Fixture::Request(5, 0, 1, "b"))->next == Next::kDrain);
  }
  SECTION("it is ready and waits") {
    REQUIRE(f->Attend(begun->lease, 0).ok());
    CHECK(!*f.Ready(begun->lease, 0, 2));
    f->EndAttend(begun->lease, 0, false, f.now());
    f->CountWaiters(begun->lease, 1);
    CHECK(absl::IsFailedPrecondition(f.Ask(Fixture::Request(5, 0, 1, "b")).status()));
    f->CountWaiters(begun->lease, -1);
    CHECK(f.Ask(Fixture::Request(5, 0, 1, "b"))->next == Next::kDrain);
  }
}

TEST_CASE("a rank of the same world joins or goes on to a newer version, or is told it is late") {
  Fixture f;
  const uint64_t lease = f.Begin(Fixture::Request(5, 0, 2));
  SECTION("joins") { CHECK(f.Begin(Fixture::Request(5, 1, 2)) == lease); }
  SECTION("joins by the attempt that the first one drew") {
    CHECK(f->current().attempt == 77);
    CHECK(f.Begin(Fixture::Request(5, 1, 2, "", 77)) == lease);
  }
  SECTION("another attempt does not join") {
    const Status refused = f.Ask(Fixture::Request(5, 1, 2, "", 78)).status();
    CHECK(absl::IsFailedPrecondition(refused));
    Says(refused, "another attempt");
  }
  SECTION("another job does not join, and does not end it") {
    OffloadRequest other = Fixture::Request(5, 1, 2);
    other.job = "another";
    const Status refused = f.Ask(other).status();
    CHECK(absl::IsFailedPrecondition(refused));
    Says(refused, "another job");
    other.version = 6;
    CHECK(absl::IsFailedPrecondition(f.Ask(other).status()));
    other.version = 4;
    CHECK(absl::IsFailedPrecondition(f.Ask(other).status()));
    CHECK(f->writing(lease));
  }
  SECTION("goes on to a newer version") {
    CHECK(f.Begin(Fixture::Request(6, 1, 2)) != lease);
    CHECK(absl::IsAborted(f->IsReady(lease, 0).status()));
    Says(f->IsReady(lease, 0).status(), "rank 1 began version 6");
  }
  SECTION("is late") {
    const Status late = f.Ask(Fixture::Request(4, 1, 2)).status();
    CHECK(absl::IsAborted(late));
    Says(late, "begun version 5");
    CHECK(f->writing(lease));
  }
  SECTION("of another world is another trainer") {
    CHECK(absl::IsFailedPrecondition(f.Ask(Fixture::Request(6, 1, 3)).status()));
  }
}

TEST_CASE("a rank that comes after another has abandoned its offload is told so at once") {
  Fixture f;
  const uint64_t attempt = GENERATE(0, 7);  // 0: they are tied by their job
  CAPTURE(attempt);
  const OffloadRequest zero = Fixture::Request(5, 0, 2, "", attempt);
  const OffloadRequest one = Fixture::Request(5, 1, 2, "", attempt);
  const uint64_t lease = f.Begin(zero);
  REQUIRE(f->Abandon(lease, 0, "no memory").ok());
  const Status late = f.Ask(one).status();
  CHECK(absl::IsAborted(late));
  Says(late, "abandoned by rank 0 of 2: no memory");
  CHECK(f->phase() == Phase::kIdle);
  SECTION("and may begin it anew") {
    const uint64_t again = f.Begin(one);
    CHECK(f.Begin(zero) == again);
  }
  SECTION("unless the other one has begun it anew") {
    const uint64_t again = f.Begin(zero);
    CHECK(f.Begin(one) == again);
  }
  SECTION("and what is another offload does not concern it") {
    CHECK(f.Ask(Fixture::Request(6, 1, 2, "", attempt))->next == Next::kDrain);
  }
}

TEST_CASE(
    "a rank that goes back to an older version has left its offload, although it is refused") {
  Fixture f;
  f.SetPublished({1, 41});
  const uint64_t lease = f.Begin(Fixture::Request(43, 0, 2));
  REQUIRE_FALSE(*f.Ready(lease, 0, 2));
  // Another process of that rank, and a rank that has not begun, leave the offload alone.
  CHECK_FALSE(f.Ask(Fixture::Request(41, 0, 2, "another")).ok());
  CHECK_FALSE(f.Ask(Fixture::Request(41, 1, 2)).ok());
  REQUIRE(f->writing(lease));
  CHECK(Says(f.Ask(Fixture::Request(41, 0, 2)).status(), "is not newer"));
  CHECK_FALSE(f->writing(lease));
  CHECK(Says(f->IsReady(lease, 0).status(), "because rank 0 went back to version 41"));
  // The other rank is told, and then begins what both train anew.
  CHECK(Says(f.Ask(Fixture::Request(43, 1, 2)).status(), "because rank 0 went back"));
  const auto anew = f.Ask(Fixture::Request(43, 1, 2));
  REQUIRE(anew.ok());
  CHECK(anew->next == Next::kDrain);
}

TEST_CASE("several ranks name a job or an attempt, so that they do not join a stranger") {
  Fixture f;
  OffloadRequest request = Fixture::Request(5, 0, 2);
  request.job = "";
  const Status refused = f.Ask(request).status();
  CHECK(absl::IsInvalidArgument(refused));
  Says(refused, "rank 0 of 2 names neither its job nor an attempt");
  request.job = std::string(257, 'j');
  CHECK(absl::IsInvalidArgument(f.Ask(request).status()));
  CHECK(f->phase() == Phase::kIdle);
  request.job = "";
  request.attempt = 7;
  const uint64_t lease = f.Begin(request);
  request.rank = 1;
  request.client = 2;
  CHECK(f.Begin(request) == lease);
}

TEST_CASE("a rank that is ready counts after its death for those who were there before") {
  Fixture f;
  const OffloadRequest one = Fixture::Request(5, 1, 2), zero = Fixture::Request(5, 0, 2);
  f->AddClient(one.client);
  const bool there = GENERATE(true, false);
  if (there) f->AddClient(zero.client);
  const uint64_t lease = f.Begin(one);
  CHECK(!*f.Ready(lease, 1, 2));
  f->EndAttend(lease, 1, false, f.now());
  f->RemoveClient(one.client, f.now());
  CHECK(f->writing(lease));
  if (!there) f->AddClient(zero.client);
  CHECK((f.Begin(zero) == lease) == there);
}

TEST_CASE("a rank whose client dies between its grant and its attendance ends the offload") {
  Fixture f;
  const OffloadRequest zero = Fixture::Request(5, 0, 2), one = Fixture::Request(5, 1, 2);
  const bool draining = GENERATE(true, false);
  f->AddClient(one.client);
  f->AddClient(one.client);  // once more, over another connection
  uint64_t lease = 0;
  if (draining) {
    lease = f.Ask(one)->lease;
  } else {
    lease = f.Begin(zero);
    REQUIRE(f.Ask(one)->lease == lease);
  }
  f->RemoveClient(one.client, f.now());
  CHECK(f->current().lease == lease);
  f->RemoveClient(one.client, f.now());
  if (draining) f->FinishDrain(lease, absl::OkStatus(), 0, f.now());
  CHECK(f->phase() == Phase::kIdle);
  Says(f->IsReady(lease, 0).status(), "rank 1 of 2 has gone before it was ready");
}

TEST_CASE("a part needs an attempt, and may come again under another one") {
  Fixture f(true);
  f.SetPublished({1, 4}, 40);
  CHECK(absl::IsInvalidArgument(f.Ask(Fixture::Request(5)).status()));
  const Status same = f.Ask(Fixture::Request(4, 0, 1, "", 40)).status();
  CHECK(absl::IsFailedPrecondition(same));
  Says(same, "this very attempt");
  CHECK(absl::IsFailedPrecondition(f.Ask(Fixture::Request(3, 0, 1, "", 41)).status()));
  const uint64_t lease = f.Begin(Fixture::Request(4, 0, 1, "", 41));
  CHECK(f->current().attempt == 41);
  CHECK(*f.Ready(lease));
  // An agent that owns the whole model has no other agents that could have given the version up.
  Fixture whole;
  whole.SetPublished({1, 4}, 40);
  Says(whole.Ask(Fixture::Request(4, 0, 1, "", 41)).status(), "is not newer than the published");
}

TEST_CASE("a wait answers for its own lease") {
  Fixture f;
  const uint64_t first = f.Begin(Fixture::Request(5));
  (void)f->Abandon(first, 0, "loss is not a number");
  const uint64_t second = f.Begin(Fixture::Request(6));
  VersionInfo info;
  info.identity.id = {1, 6};
  CHECK(!f->Outcome(6, second, {}).has_value());
  CHECK(*f.Ready(second));
  f->MarkPublished(info);
  f.SetPublished({1, 6});
  // A later version is published, but the first lease's version is not.
  const auto failed = f->Outcome(5, first, info);
  REQUIRE(failed.has_value());
  CHECK(absl::IsAborted(failed->status()));
  Says(failed->status(), "loss is not a number");
  CHECK((*f->Outcome(6, second, info))->id() == StateId{1, 6});
  // Without a lease, the version itself or a newer one is the answer.
  CHECK((*f->Outcome(5, 0, info))->id() == StateId{1, 6});
  CHECK(!f->Outcome(7, 0, info).has_value());
  Says(f->Outcome(7, 4711, info)->status(), "is not known");
}

TEST_CASE("a sender that was started anew answers for the attempt whose version it still has") {
  Fixture f;
  VersionInfo info;
  info.identity.id = {1, 6};
  info.identity.attempt = 40;
  CHECK((*f->Outcome(6, 4711, info, 40))->id() == StateId{1, 6});
  // It knows nothing of another attempt at this version, of another version, or of no attempt.
  Says(f->Outcome(6, 4711, info, 41)->status(), "is not known");
  Says(f->Outcome(7, 4711, info, 40)->status(), "is not known");
  info.identity.attempt = 0;
  Says(f->Outcome(6, 4711, info, 0)->status(), "is not known");
}

TEST_CASE("a chunk is final when the ranks have counted all its bytes") {
  Fixture f;
  const uint64_t lease = f.Begin(Fixture::Request(5, 0, 2));
  REQUIRE(f.Begin(Fixture::Request(5, 1, 2)) == lease);
  std::vector<uint32_t> whole;
  const uint32_t chunk = static_cast<uint32_t>(kChunkBytes);
  REQUIRE(f.Count(lease, 0, {0, 1}, {chunk / 2, kBig - chunk}, &whole).ok());
  CHECK(whole == std::vector<uint32_t>{1});
  REQUIRE(f.Count(lease, 1, {2}, {99}, &whole).ok());
  CHECK(whole.empty());
  REQUIRE(f.Count(lease, 1, {0, 2}, {chunk / 2, 1}, &whole).ok());
  CHECK(whole == std::vector<uint32_t>{0, 2});
  SECTION("and one byte more ends the offload") {
    const Status over = f.Count(lease, 1, {0}, {1});
    CHECK(absl::IsFailedPrecondition(over));
    Says(over, "tensor big");
    Says(over, "rank 1 and rank 0");
    CHECK(f->phase() == Phase::kIdle);
    CHECK(f->IsReady(lease, 0).status() == over);
  }
  SECTION("and it cannot be declared unchanged") {
    ReadyNotice none{5, 0, 2, lease, false, {1, 2}, {0}};
    CHECK(!*f->MarkReady(none, f.published()));
    ReadyNotice same{5, 1, 2, lease, false, {1, 2}, {0}};
    f.SetPublished({1, 4});
    const Status both = f->MarkReady(same, f.published()).status();
    CHECK(absl::IsFailedPrecondition(both));
    Says(both, "big");
  }
}

TEST_CASE("what one rank claims alone, no other may count, in either order") {
  Fixture f;
  const uint64_t lease = f.Begin(Fixture::Request(5, 0, 2));
  f.Begin(Fixture::Request(5, 1, 2));
  const bool count_first = GENERATE(true, false);
  const auto claim = [&] {
    return f->MarkWritten(lease, {.rank = 0, .tensors = {0}, .sole = true}).status();
  };
  const Status first = count_first ? f.Count(lease, 1, {1}, {10}) : claim();
  CHECK(first.ok());
  const Status second = count_first ? claim() : f.Count(lease, 1, {1}, {10});
  CHECK(absl::IsFailedPrecondition(second));
  Says(second, "tensor big");
  CHECK(f->phase() == Phase::kIdle);
}

TEST_CASE("counts for chunks that do not exist are refused and do not end the offload") {
  Fixture f(true);
  const uint64_t lease = f.Begin(Fixture::Request(5, 0, 2, "", 1));
  for (const auto& [chunks, bytes] :
       {std::pair<std::vector<uint32_t>, std::vector<uint32_t>>{{4}, {1}},
        {{3}, {1}},
        {{0, 1}, {1}}}) {
    CHECK(absl::IsInvalidArgument(f.Count(lease, 0, chunks, bytes)));
  }
  CHECK(f->writing(lease));
}

TEST_CASE("who has not begun writes nothing, whatever its number") {
  Fixture f;
  const uint64_t lease = f.Begin(Fixture::Request(5, 0, 2));
  for (const uint32_t rank : {1u, 2u, ~0u}) {
    CAPTURE(rank);
    const auto written = f->MarkWritten(lease, {.rank = rank, .tensors = {0}, .sole = true});
    CHECK(absl::IsInvalidArgument(written.status()));
    Says(written.status(), "has not begun");
  }
  CHECK(f->phase() == Phase::kWriting);
}

TEST_CASE("a rollback takes the place of an offload that nobody holds") {
  Fixture f(false, milliseconds(0));
  const uint64_t lease = f.Begin(Fixture::Request(5, 0, 2));
  const Status held = f->BeginRollback(3, 1, f.now());
  CHECK(absl::IsFailedPrecondition(held));
  Says(held, "rank 0");
  // Rank 0 is ready and has gone; rank 1 never came.
  CHECK(!*f.Ready(lease, 0, 2));
  f->EndAttend(lease, 0, false, f.now());
  f.Pass(seconds(10));
  REQUIRE(f->BeginRollback(3, 1, f.now()) == absl::OkStatus());
  CHECK(f->phase() == Phase::kPublishing);
  CHECK(absl::IsAborted(f->IsReady(lease, 0).status()));
}

TEST_CASE("an offload's time is up: the late ranks are named") {
  Fixture f(false, milliseconds(500));
  CHECK(!f->deadline());
  const uint64_t lease = f.Begin(Fixture::Request(5, 0, 3));
  f.Begin(Fixture::Request(5, 1, 3));
  CHECK(!*f.Ready(lease, 1, 3));
  CHECK(*f->deadline() == f.now() + milliseconds(500));
  CHECK(!f->Expire(f.now() + milliseconds(499)));
  CHECK(f->Expire(f.now() + milliseconds(500)));
  const Status why = f->IsReady(lease, 0).status();
  Says(why, "rank 0 is not ready, rank 2 has not begun");
}

TEST_CASE("an incomplete version ends, and names what nobody wrote") {
  Fixture f;
  const uint64_t lease = f.Begin(Fixture::Request(5));
  const Status missing = f->MarkReady({5, 0, 1, lease, false, {0, 2}, {}}, f.published()).status();
  CHECK(absl::IsFailedPrecondition(missing));
  Says(missing, "1 of 3 tensors");
  Says(missing, "small");
  CHECK(f->phase() == Phase::kIdle);
}

TEST_CASE("payloads are of bytes that the agent has, and count them") {
  const bool part = GENERATE(false, true);
  const uint32_t world = GENERATE(1u, 2u);
  CAPTURE(part, world);
  Fixture f(part);
  f.SetPublished({1, 1});
  const uint64_t lease = f.Begin(Fixture::Request(2, 0, world, "", 5));
  const auto give = [&](uint32_t rank, DiffedChunk payload) {
    WrittenNotice notice;
    notice.rank = rank;
    notice.payloads = {payload};
    return f->MarkWritten(lease, notice);
  };
  const auto all = give(0, {2, 0, 100, 99, 7});
  REQUIRE(all.ok());
  CHECK(all->chunks == std::vector<uint32_t>{2});
  CHECK(give(0, {1, 0, kBig - (2 << 20), 0, 7}).ok());
  CHECK(give(0, {3, 0, 4, 3, 7}).ok() == !part);
  // A run within a chunk; the chunk is final when all its bytes are counted.
  const auto run = give(0, {0, 1000, (2 << 20) - 1000, 50, 7});
  REQUIRE(run.ok());
  CHECK(run->chunks.empty());
  std::vector<uint32_t> whole;
  REQUIRE(f.Count(lease, 0, {0}, {1000}, &whole).ok());
  CHECK(whole == std::vector<uint32_t>{0});
  for (const DiffedChunk& wrong :
       {DiffedChunk{2, 0, 100, 100, 7},
        {4, 0, 2, 1, 7},
        {2, 50, 52, 1, 7},
        {2, 1, 98, 1, 7},
        {2, 0, 99, 1, 7},
        {2, 102, 0, 0, 7},
        // Runs: of odd sizes, too many, one over the other, beyond the end.
        {2, 0, 40, 1, 7, 30, 40},
        {2, 0, 42, 1, 7, 21, 30},
        {2, 0, 40, 1, 7, 20, 31},
        {2, 0, 40, 1, 7, 20, 10},
        {2, 0, 40, 1, 7, 20, 82},
        {2, 0, 40, 1, 7, 20, 0xfffffffe},
        {2, 0, 0, 0, 7}}) {
    CAPTURE(wrong.chunk, wrong.offset, wrong.length, wrong.bytes, wrong.run, wrong.step);
    const Status refused = give(0, wrong).status();
    CHECK(absl::IsInvalidArgument(refused));
  }
  REQUIRE(f->writing(lease));
  // The same bytes twice, by one rank or two, end the offload.
  if (world == 2) f.Begin(Fixture::Request(2, 1, 2, "", 5));
  CHECK(absl::IsFailedPrecondition(give(world - 1, {2, 0, 2, 1, 7}).status()));
}

}  // namespace deltawire::sender::offload_session_test
