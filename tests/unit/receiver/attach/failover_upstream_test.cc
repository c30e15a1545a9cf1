// Several upstreams as one: which events and pulls go through, when one is left and returned to,
// and that a lineage which was left is not taken again. The upstreams are in memory.
#include "receiver/attach/failover_upstream.h"

#include <catch2/catch.hpp>
#include <mutex>

#include "tests/support/eventually.h"
#include "tests/unit/receiver/attach/scripted_upstream.h"

namespace deltawire::receiver::failover_upstream_test {
namespace {

using std::chrono::milliseconds;
using testing::Eventually;
constexpr Hash128 kOld{1, 2}, kNew{3, 4};

Identity At(const Hash128& lineage, uint64_t version) {
  return {.lineage = lineage, .id = {1, version}, .root = version};
}

constexpr UpstreamChoice::Times kSoon{.settle = milliseconds(10),
                                      .compare_every = milliseconds(20),
                                      .first_doubt = milliseconds(4),
                                      .longest_doubt = milliseconds(60000),
                                      .start_patience = milliseconds(0)};
constexpr UpstreamChoice::Times kNeverCompares{.settle = milliseconds(10),
                                               .compare_every = std::chrono::hours(1),
                                               .first_doubt = milliseconds(4),
                                               .longest_doubt = milliseconds(60000),
                                               .start_patience = milliseconds(0)};

/// A receiver of two upstreams: `r` is preferred, `s` is the origin.
struct Leaf {
  explicit Leaf(const UpstreamChoice::Times& times, uint64_t relay = 0) {
    std::vector<std::unique_ptr<Upstream>> both;
    for (ScriptedUpstream** u : {&r, &s}) {
      auto one = std::make_unique<ScriptedUpstream>(u == &r ? "r" : "s");
      *u = one.get();
      both.push_back(std::move(one));
    }
    up = MakeFailoverUpstream(std::move(both), 1, relay, times);
  }
  Status Attach() {
    return up->Attach(
        "m", {},
        [this](const SenderEvent& e) {
          std::lock_guard lock(mu);
          told = e.newest.identity;
          ++events;
        },
        [this](const Status& status) {
          std::lock_guard lock(mu);
          why = status;
          ++ended;
        });
  }
  /// Attaches to `address`, after as many failures of the other as it takes.
  bool AttachTo(const std::string& address) {
    return Eventually([&] {
      const bool there = up->in_use() == address;
      (void)Attach();
      return there && up->in_use() == address;
    });
  }
  int Ended() const {
    std::lock_guard lock(mu);
    return ended;
  }
  Identity Told() const {
    std::lock_guard lock(mu);
    return told;
  }
  std::string Why() const {
    std::lock_guard lock(mu);
    return std::string(MessageOf(why));
  }

  ScriptedUpstream* r = nullptr;
  ScriptedUpstream* s = nullptr;
  mutable std::mutex mu;
  Identity told;
  Status why;
  int events = 0, ended = 0;
  std::unique_ptr<Upstream> up;
};

}  // namespace

TEST_CASE(
    "failover: a lineage that was left is not taken again when its upstream is all there is") {
  Leaf leaf(kSoon);
  leaf.r->Has(At(kOld, 100));
  leaf.s->Has(At(kOld, 100));
  REQUIRE(leaf.Attach() == absl::OkStatus());
  leaf.r->Tell();
  CHECK(leaf.Told() == At(kOld, 100));
  // The trainer begins anew, and the relay does not hear of it.
  leaf.s->Has(At(kNew, 3));
  REQUIRE(Eventually([&] { return leaf.Ended() == 1; }));
  CHECK(leaf.up->in_use() == "s");
  REQUIRE(leaf.Attach() == absl::OkStatus());
  leaf.s->Tell();
  CHECK(leaf.Told() == At(kNew, 3));
  // Then the sender is gone.
  leaf.s->Refuse(absl::UnavailableError("gone"));
  leaf.s->End(absl::UnavailableError("gone"));
  REQUIRE(leaf.AttachTo("r"));
  const int ended = leaf.Ended();
  CHECK_FALSE(leaf.up->OpenPull({}).ok());
  const auto described = leaf.up->Describe("m");
  CHECK_FALSE(described.ok());
  CHECK(leaf.r->counts().opens == 0);
  REQUIRE(leaf.AttachTo("r"));
  REQUIRE(Eventually([&] {
    leaf.r->Tell();
    return leaf.Ended() > ended;
  }));
  CHECK(leaf.Told() == At(kNew, 3));
  CHECK(leaf.Why().find("which was left for lineage") != std::string::npos);
  // When the relay has followed, it is as good as before.
  leaf.r->Has(At(kNew, 4));
  REQUIRE(Eventually([&] {
    if (!leaf.AttachTo("r")) return false;
    leaf.r->Tell();
    return leaf.up->OpenPull({}).ok();
  }));
  CHECK(leaf.Told() == At(kNew, 4));
}

TEST_CASE("failover: a relay that comes late to a lineage that was left is behind") {
  constexpr Hash128 kFirst{5, 6};
  Leaf leaf(kNeverCompares);
  leaf.r->Has(At(kFirst, 1));
  REQUIRE(leaf.Attach() == absl::OkStatus());
  leaf.r->Tell();
  CHECK(leaf.Told() == At(kFirst, 1));
  leaf.r->Refuse(absl::UnavailableError("gone"));
  leaf.r->End(absl::UnavailableError("gone"));
  // From the sender the receiver hears of two new beginnings, and the relay only of the first.
  leaf.s->Has(At(kOld, 7));
  REQUIRE(leaf.AttachTo("s"));
  leaf.s->Tell();
  leaf.s->Has(At(kNew, 10));
  leaf.s->Tell();
  CHECK(leaf.Told() == At(kNew, 10));
  leaf.r->Refuse(absl::OkStatus());
  leaf.r->Has(At(kOld, 7));
  leaf.s->Refuse(absl::UnavailableError("gone"));
  leaf.s->End(absl::UnavailableError("gone"));
  REQUIRE(leaf.AttachTo("r"));
  leaf.r->Tell();
  CHECK(leaf.Told() == At(kNew, 10));
  CHECK_FALSE(leaf.up->OpenPull({}).ok());
}

TEST_CASE("failover: an upstream that itself goes back to a lineage is believed") {
  Leaf leaf(kNeverCompares);
  leaf.r->Has(At(kOld, 1));
  REQUIRE(leaf.Attach() == absl::OkStatus());
  for (const Identity& id : {At(kOld, 1), At(kNew, 1), At(kOld, 2), At(kNew, 2)}) {
    leaf.r->Has(id);
    leaf.r->Tell();
    CHECK(leaf.Told() == id);
  }
}

TEST_CASE("failover: a relay that is busy with the newer version is not left, one that stops is") {
  Leaf leaf(kSoon);
  leaf.r->Has(At(kOld, 1));
  leaf.s->Has(At(kOld, 2));
  REQUIRE(leaf.Attach() == absl::OkStatus());
  leaf.r->Tell();
  // What the relay says between two comparisons, each of which asks the sender.
  RelayNews news{.fetching = At(kOld, 2)};
  const auto compared = [&](int times) {
    const int asked = leaf.s->counts().newest;
    return Eventually([&] { return leaf.s->counts().newest >= asked + times || leaf.Ended() > 0; });
  };
  leaf.s->OnNewest([&] {
    ++news.fetched_bytes;
    leaf.r->Tell(news);
  });
  REQUIRE(compared(10));
  CHECK(leaf.Ended() == 0);
  leaf.s->OnNewest([&leaf] { leaf.r->Tell({.fetching = At(kOld, 2), .applying = true}); });
  REQUIRE(compared(10));
  CHECK(leaf.Ended() == 0);
  // It repeats itself: it has come to a stop.
  leaf.s->OnNewest([&leaf] { leaf.r->Tell({.fetching = At(kOld, 2)}); });
  REQUIRE(Eventually([&] { return leaf.Ended() > 0; }));
  CHECK(leaf.up->in_use() == "s");
  leaf.s->OnNewest(nullptr);
}

TEST_CASE("failover: a relay that asks for patience is not left, one that has nothing is") {
  Leaf leaf(kNeverCompares);
  leaf.s->Has(At(kOld, 1));
  leaf.r->Refuse(absl::AbortedError("fetching it itself; ask again"));
  for (int i = 0; i < 3; ++i) {
    CHECK_FALSE(leaf.Attach().ok());
    CHECK_FALSE(leaf.up->Describe("m").ok());
    CHECK(leaf.up->in_use() == "r");
  }
  leaf.r->Refuse(absl::OkStatus());
  REQUIRE(leaf.Attach() == absl::OkStatus());
  leaf.r->End(absl::AbortedError("fetching it itself; ask again"));
  CHECK(leaf.up->in_use() == "r");
  leaf.r->Refuse(absl::NotFoundError("no whole version"));
  CHECK_FALSE(leaf.Attach().ok());
  CHECK(leaf.up->in_use() == "s");
}

TEST_CASE(
    "failover: at its start a receiver that holds nothing waits for one that is not there yet") {
  const Status away = absl::UnavailableError("connection refused");
  UpstreamChoice::Times patient = kNeverCompares;
  patient.start_patience = std::chrono::hours(1);
  const auto try_it = [](Leaf& leaf, const Status& why) {
    leaf.r->Refuse(why);
    (void)leaf.up->Describe("m");
    (void)leaf.Attach();
    return leaf.up->in_use();
  };
  Leaf fresh(patient), hasty(kNeverCompares), refused(patient), told(patient);
  CHECK(try_it(fresh, away) == "r");
  CHECK(try_it(hasty, away) == "s");
  CHECK(try_it(refused, absl::NotFoundError("no such model")) == "s");
  // What was heard of once is missed at once.
  told.r->Has(At(kOld, 1));
  REQUIRE(told.Attach() == absl::OkStatus());
  told.r->Tell();
  told.r->End(away);
  CHECK(told.up->in_use() == "s");
  Leaf holds(patient);
  holds.r->Refuse(away);
  (void)holds.up->Attach(
      "m", {.committed = At(kOld, 1)}, [](const auto&) {}, [](const Status&) {});
  CHECK(holds.up->in_use() == "s");
}

TEST_CASE("failover: answers and beats do not make up for pulls that fail") {
  Leaf leaf(kNeverCompares);
  leaf.r->Has(At(kOld, 1));
  leaf.s->Has(At(kOld, 1));
  SteadyClock::duration last{};
  for (int i = 0; i < 4; ++i) {
    REQUIRE(leaf.AttachTo("r"));
    leaf.r->Tell();
    REQUIRE(leaf.up->OpenPull({}).ok());
    const auto start = SteadyClock::now();
    leaf.up->NotePullEnd(absl::UnavailableError("the bulk port does not answer"));
    REQUIRE(leaf.up->in_use() == "s");
    REQUIRE(leaf.Attach() == absl::OkStatus());
    leaf.s->Tell();
    REQUIRE(leaf.up->OpenPull({}).ok());
    leaf.up->NotePullEnd(absl::OkStatus());
    REQUIRE(Eventually([&] { return leaf.up->in_use() == "r"; }));
    last = SteadyClock::now() - start;
  }
  CHECK(last >= milliseconds(4 * 64 / 2));
}

TEST_CASE(
    "failover: a pull that breaks off by the receiver's own doing leaves the upstream alone") {
  Leaf leaf(kNeverCompares);
  leaf.r->Has(At(kOld, 1));
  REQUIRE(leaf.Attach() == absl::OkStatus());
  leaf.r->Tell();
  REQUIRE(leaf.up->OpenPull({}).ok());
  leaf.up->NotePullEnd(absl::CancelledError("no agent is at fault"));
  // One that cuts its pulls asks for another try.
  REQUIRE(leaf.up->OpenPull({}).ok());
  leaf.up->NotePullEnd(absl::AbortedError("cut so that the next version need not wait"));
  CHECK(leaf.up->in_use() == "r");
  CHECK(leaf.r->attached());
  CHECK(leaf.s->counts().attaches == 0);
}

TEST_CASE("failover: nobody stays attached to one upstream and pulls from another") {
  Leaf leaf(kNeverCompares);
  leaf.r->Has(At(kOld, 1));
  leaf.s->Has(At(kOld, 1));
  REQUIRE(leaf.Attach() == absl::OkStatus());
  leaf.r->Tell();
  leaf.r->End(absl::UnavailableError("gone for a moment"));
  REQUIRE(leaf.up->in_use() == "s");
  // The first is well again, and returned to, while the attachment to the second is being made.
  bool returned = false;
  leaf.s->OnAttach([&] { returned = Eventually([&] { return leaf.up->in_use() == "r"; }); });
  (void)leaf.Attach();
  REQUIRE(returned);
  CHECK_FALSE(leaf.s->attached());
  CHECK(leaf.Ended() == 2);
  CHECK_FALSE(leaf.up->OpenPull({}).ok());
  CHECK(leaf.s->counts().opens + leaf.r->counts().opens == 0);
}

TEST_CASE("failover: a relay does not follow one whose versions come through itself") {
  Leaf leaf(kNeverCompares, 7);
  leaf.r->Has(At(kOld, 1));
  REQUIRE(leaf.Attach() == absl::OkStatus());
  leaf.r->Tell({.path = {5, 6}});
  CHECK(leaf.Told() == At(kOld, 1));
  leaf.r->Has(At(kOld, 2));
  leaf.r->Tell({.path = {7, 6}});
  CHECK(leaf.Told() == At(kOld, 1));
  REQUIRE(Eventually([&] { return leaf.up->in_use() == "s" && leaf.Ended() > 0; }));
  CHECK(leaf.Why().find("a circle of relays") != std::string::npos);
}

}  // namespace deltawire::receiver::failover_upstream_test
