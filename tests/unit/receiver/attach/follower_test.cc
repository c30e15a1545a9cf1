// What a receiver decides from its agents' events. A Follower is pure, so the times are made up.
#include "receiver/attach/follower.h"

#include <catch2/catch.hpp>

namespace deltawire::receiver::follower_test {
namespace {

using Time = Follower::Time;
using std::chrono::milliseconds;

constexpr Hash128 kA{1, 2}, kB{3, 4}, kC{5, 6};

Identity State(Hash128 lineage, uint64_t version, uint64_t root, uint64_t attempt = 7,
               uint64_t epoch = 1) {
  return {lineage, {epoch, version}, root, attempt};
}

/// A follower of some agents, and what each of them says.
struct Setup {
  explicit Setup(size_t agents, bool follow = true)
      : follower(Names(agents), {.follow = follow, .seed = 1}) {}
  static std::vector<std::string> Names(size_t n) {
    std::vector<std::string> names;
    for (size_t i = 0; i < n; ++i) names.push_back("s" + std::to_string(i));
    return names;
  }
  void Say(size_t agent, const Identity& newest) {
    follower.NoteEvent(agent, {.newest = {.identity = newest}});
  }
  Follower::Choice Next(const Identity& committed, bool requested = false) {
    return follower.Next({.committed = committed, .requested = requested}, now);
  }

  Time now{std::chrono::hours(1)};
  Follower follower;
};

TEST_CASE("the same number with other bytes is pulled, and so is another lineage") {
  Setup s(1);
  const Identity held = State(kA, 1, 10);
  s.Say(0, held);
  CHECK_FALSE(s.Next(held).pull);
  s.Say(0, State(kA, 1, 11));
  CHECK(s.Next(held).pull);
  s.Say(0, State(kB, 1, 10));  // the sender was wiped, so its lineage is another
  CHECK(s.Next(held).pull);
  s.Say(0, State(kB, 1, 10));
  CHECK(s.Next(State(kA, 900, 10)).pull);  // another lineage counts, whatever the numbers are
}

TEST_CASE("a version that is coming is pulled by whom it leads on, and by nobody else") {
  const Identity one = State(kA, 1, 10), two = State(kA, 2, 20), three = State(kA, 3, 30);
  Setup s(1);
  const auto say = [&](const Identity& newest, const IncomingNews& incoming) {
    s.follower.NoteEvent(0, {.newest = {.identity = newest}, .incoming = incoming});
  };
  say(two, {three, two});
  const auto joined = s.Next(two);
  CHECK(joined.pull);
  CHECK(joined.target.incoming);
  CHECK(joined.target.whole == three);
  // One that is behind pulls what is complete first.
  const auto behind = s.Next(one);
  CHECK(behind.pull);
  CHECK_FALSE(behind.target.incoming);
  CHECK(behind.target.whole == two);
  CHECK_FALSE(s.Next({}).target.incoming);
  CHECK_FALSE(s.Next(two, true).target.incoming);  // a sync is for what is published
  CHECK_FALSE(s.Next(three).pull);                 // it has come meanwhile
  CHECK_FALSE(s.follower.Next({.committed = two, .paused = true}, s.now).pull);
  // A pull of it that has ended without it is not tried again before the next event.
  s.follower.ForgetIncoming(joined.target);
  CHECK_FALSE(s.Next(two).pull);
  say(two, {three, two});
  CHECK(s.Next(two).pull);
  s.follower.NoteEnd(0);
  CHECK(s.follower.incoming(0).empty());
}

TEST_CASE("a lineage that a relay is leaving itself is not returned to") {
  const Identity old = State(kA, 13, 10), fresh = State(kB, 3, 20), other = State(kC, 1, 30);
  Setup s(1);
  const auto say = [&](const Identity& newest, const IncomingNews& incoming) {
    s.follower.NoteEvent(0, {.newest = {.identity = newest}, .incoming = incoming});
  };
  say(old, {fresh, {}});
  CHECK(s.Next(old).target.whole == fresh);
  // Its engine keeps the relay from committing what has come here.
  const auto waits = s.Next(fresh);
  CHECK_FALSE(waits.pull);
  CHECK_FALSE(waits.why.empty());
  say(old, {});  // its pull has broken off
  CHECK_FALSE(s.Next(fresh).pull);
  CHECK(s.Next(fresh, true).pull);  // asked for
  CHECK(s.Next(other).pull);
  say(fresh, {});
  CHECK_FALSE(s.Next(fresh).pull);
  say(old, {});  // it goes back itself, as if its sender had
  CHECK(s.Next(fresh).pull);
  say(other, {});
  CHECK(s.Next(fresh).pull);
}

TEST_CASE("a version that is still written is not pulled while somebody checks the weights") {
  const Identity one = State(kA, 1, 10);
  Identity two = State(kA, 2, 0);
  Setup s(1);
  s.follower.NoteEvent(0, {.newest = {.identity = one}, .incoming = {two, one}});
  const auto joined = s.Next(one);
  CHECK(joined.pull);
  CHECK(joined.target.unwritten());
  CHECK_FALSE(joined.target.root_known);
  CHECK_FALSE(s.follower.Next({.committed = one, .checking = true}, s.now).pull);
  two.root = 20;
  s.follower.NoteEvent(0, {.newest = {.identity = one}, .incoming = {two, one}});
  CHECK_FALSE(s.Next(one).target.unwritten());
  CHECK(s.follower.Next({.committed = one, .checking = true}, s.now).pull);
}

TEST_CASE("a member of a group makes ready what is still written, and nothing else") {
  const Identity one = State(kA, 1, 10);
  Identity two = State(kA, 2, 20);
  Setup s(1, /*follow=*/false);
  const auto ahead = [&](bool member) {
    return s.follower.ChooseUnwritten({.committed = one, .member = member}, s.now);
  };
  CHECK_FALSE(ahead(true).pull);
  s.follower.NoteEvent(0, {.newest = {.identity = one}, .incoming = {two, one}});
  CHECK_FALSE(ahead(true).pull);  // of a relay
  two.root = 0;
  s.follower.NoteEvent(0, {.newest = {.identity = one}, .incoming = {two, one}});
  CHECK_FALSE(ahead(false).pull);
  const auto choice = ahead(true);
  CHECK(choice.pull);
  CHECK(choice.target.unwritten());
  CHECK(choice.target.exact);
}

TEST_CASE("the first version of one that holds nothing is pulled by everybody while it comes") {
  Setup s(1);
  const Identity two = State(kA, 2, 20);
  s.follower.NoteEvent(0, {.incoming = {two, {}}});
  CHECK(s.Next({}).target.incoming);
  CHECK(s.Next(State(kA, 1, 10)).target.incoming);
  CHECK(s.Next(State(kB, 9, 10)).target.incoming);  // of a lineage before
  CHECK_FALSE(s.Next(State(kA, 3, 30)).pull);
}

/// Two agents, of which each has its part of version 1, as has the receiver.
struct TwoAgents : Setup {
  TwoAgents() : Setup(2) {
    Write(0, {});
    Write(1, {});
  }
  static Identity One(size_t agent) { return State(agent == 0 ? kA : kB, 1, 10 + agent, 7); }
  static Identity Two(size_t agent, uint64_t attempt = 8) {
    return State(agent == 0 ? kA : kB, 2, 0, attempt);
  }
  static Identity Whole() { return Combine(std::vector<Identity>{One(0), One(1)}); }
  void Write(size_t agent, const Identity& coming, const Identity& newest) {
    follower.NoteEvent(agent, {.newest = {.identity = newest},
                               .incoming = {coming, coming.empty() ? Identity{} : newest}});
  }
  void Write(size_t agent, const Identity& coming) { Write(agent, coming, One(agent)); }
};

TEST_CASE("of several agents the parts of one attempt are pulled while they come") {
  TwoAgents s;
  CHECK_FALSE(s.Next(s.Whole()).pull);
  s.Write(0, s.Two(0));
  const auto first = s.Next(s.Whole());
  CHECK(first.target.unwritten());
  CHECK(first.target.awaited == std::vector<size_t>{1});
  CHECK(first.target.parts == std::vector<Identity>{s.Two(0), s.Two(1)});
  CHECK_FALSE(s.follower.HasPart(1, s.Two(1)));
  s.Write(1, s.Two(1, 9));  // another attempt at the same version
  CHECK_FALSE(s.Next(s.Whole()).pull);
  s.Write(1, s.Two(1));
  const auto joined = s.Next(s.Whole());
  CHECK(joined.pull);
  CHECK(joined.target.unwritten());
  CHECK(joined.target.awaited.empty());
  CHECK(s.follower.HasPart(1, s.Two(1)));
  CHECK(joined.target.parts == std::vector<Identity>{s.Two(0), s.Two(1)});
  CHECK(joined.target.whole.id == StateId{1, 2});
  CHECK(joined.target.whole.attempt == 8);
  CHECK_FALSE(s.Next(s.Whole(), true).target.incoming);
  CHECK_FALSE(s.follower.Next({.committed = s.Whole(), .checking = true}, s.now).pull);
  CHECK_FALSE(s.Next(State(kC, 1, 21)).target.incoming);  // what is complete comes first
  CHECK_FALSE(s.Next({}).target.incoming);
  // One agent has published already.
  Identity published = s.Two(0);
  published.root = 20;
  s.Write(0, {}, published);
  const auto half = s.Next(s.Whole());
  CHECK(half.target.unwritten());
  CHECK(half.target.parts == std::vector<Identity>{published, s.Two(1)});
  CHECK_FALSE(s.follower.IsPublished(half.target.parts));
  CHECK_FALSE(s.follower.Next({.committed = s.Whole(), .one_file = true}, s.now).target.incoming);
  s.Write(1, {}, [&] {
    Identity other = s.Two(1);
    other.root = 30;
    return other;
  }());
  CHECK(s.follower.IsPublished(half.target.parts));
  CHECK_FALSE(s.Next(s.Whole()).target.incoming);
  CHECK(s.Next(s.Whole()).target.whole.root == 50);
  CHECK(IsOf(joined.target.whole, s.Next(s.Whole()).target.whole));
}

TEST_CASE("of agents that are a version apart the earlier version is pulled first") {
  TwoAgents s;
  Identity published = s.Two(0);
  published.root = 20;
  Identity third = s.Two(0, 9);
  third.id.version = 3;
  s.Write(1, s.Two(1));
  s.Write(0, third, published);
  const auto next = s.Next(s.Whole());
  CHECK(next.target.unwritten());
  CHECK(next.target.parts == std::vector<Identity>{published, s.Two(1)});
}

TEST_CASE("what comes of several agents is given up with the first part that does not come") {
  TwoAgents s;
  s.Write(0, s.Two(0));
  s.Write(1, s.Two(1));
  const Follower::Target target = s.Next(s.Whole()).target;
  REQUIRE(target.unwritten());
  CHECK_FALSE(s.follower.IsAbandoned(target.parts));
  SECTION("an agent says nothing of it any more") { s.Write(1, {}); }
  SECTION("an agent has another attempt") { s.Write(1, s.Two(1, 9)); }
  SECTION("an agent has published another attempt") {
    Identity published = s.Two(1, 9);
    published.root = 20;
    s.Write(1, {}, published);
  }
  CHECK(s.follower.IsAbandoned(target.parts));
  CHECK_FALSE(s.Next(s.Whole()).target.incoming);
}

TEST_CASE("an agent that says nothing of an attempt is waited for, unless it has gone on") {
  TwoAgents s;
  s.Write(0, s.Two(0));
  const Follower::Target target = s.Next(s.Whole()).target;
  REQUIRE(target.unwritten());
  s.Write(1, {});
  CHECK_FALSE(s.follower.IsAbandoned(target.parts));
  SECTION("to another attempt at the version") { s.Write(1, s.Two(1, 9)); }
  SECTION("to a later version") {
    s.Write(1, {}, State(kB, 3, 30, 9));
    CHECK(s.follower.IsAbandoned(target.parts));
    return;  // that is known of no other agent, and nothing is to be pulled
  }
  SECTION("to another epoch") { s.Write(1, {}, State(kB, 1, 30, 9, 2)); }
  CHECK(s.follower.IsAbandoned(target.parts));
}

TEST_CASE("a pull that breaks off gives nothing up before the agents have spoken again") {
  TwoAgents s;
  s.Write(0, s.Two(0));
  s.Write(1, s.Two(1));
  const Follower::Target target = s.Next(s.Whole()).target;
  s.follower.ForgetIncoming(target);
  CHECK_FALSE(s.Next(s.Whole()).pull);
  CHECK_FALSE(s.follower.IsAbandoned(target.parts));
  s.Write(0, s.Two(0));
  CHECK_FALSE(s.Next(s.Whole()).pull);
  CHECK_FALSE(s.follower.IsAbandoned(target.parts));
  s.Write(1, s.Two(1));
  CHECK(s.Next(s.Whole()).target.parts == target.parts);
  s.follower.ForgetIncoming(target);
  s.Write(1, {});
  CHECK(s.follower.IsAbandoned(target.parts));
}

TEST_CASE("an older version of the same lineage is not taken unasked") {
  Setup s(1);
  s.Say(0, State(kA, 4, 10));
  const auto choice = s.Next(State(kA, 5, 11));
  CHECK_FALSE(choice.pull);
  CHECK(choice.why.find("older") != std::string::npos);
  CHECK(s.Next(State(kA, 5, 11), true).pull);
}

TEST_CASE("an older state is not taken for what an update or a bad chunk has broken") {
  Setup s(1);
  const Identity before = State(kA, 6, 60, 7, 4);
  const Follower::Situation broken{.committed = {}, .last_whole = before};
  const Follower::Situation bad{.committed = before, .last_whole = before, .corrupt = true};
  s.Say(0, State(kA, 1, 1));  // of a relay that is behind
  for (const Follower::Situation& situation : {broken, bad}) {
    const Follower::Choice choice = s.follower.Next(situation, s.now);
    CHECK_FALSE(choice.pull);
    CHECK(choice.why.find("older than the version 6 (epoch 4)") != std::string::npos);
    Follower::Situation asked = situation;
    asked.requested = true;
    CHECK(s.follower.Next(asked, s.now).pull);
    CHECK(s.follower.Next(asked, s.now).why == choice.why);  // for who does not take the older
  }
  s.Say(0, before);
  CHECK(s.follower.Next(broken, s.now).pull);
  CHECK(s.follower.Next(bad, s.now).pull);
  s.Say(0, State(kB, 1, 1));  // another history
  CHECK(s.follower.Next(broken, s.now).pull);
  CHECK(s.follower.Next(bad, s.now).pull);
}

TEST_CASE("nothing is pulled while paused, not following or nothing is published") {
  Setup s(1);
  s.Say(0, {});
  CHECK_FALSE(s.Next({}, true).pull);
  s.Say(0, State(kA, 1, 10));
  CHECK(s.Next({}).pull);
  CHECK_FALSE(s.follower.Next({.committed = {}, .paused = true}, s.now).pull);
  CHECK(s.follower.Next({.committed = {}, .paused = true, .requested = true}, s.now).pull);
  CHECK(s.follower.Next({.committed = State(kA, 1, 10), .corrupt = true}, s.now).pull);
  Setup only_asked(1, false);
  only_asked.Say(0, State(kA, 1, 10));
  CHECK_FALSE(only_asked.Next({}).pull);
}

TEST_CASE("the target is the newest state that all agents have under one attempt") {
  Setup s(2);
  s.Say(0, State(kA, 49, 1, 70));
  s.Say(1, State(kB, 49, 2, 70));
  auto choice = s.Next({});
  REQUIRE(choice.pull);
  CHECK(choice.target.whole.id == StateId{1, 49});
  CHECK(choice.target.whole.root == 3);
  CHECK(choice.target.root_known);
  const Identity committed = choice.target.whole;
  CHECK_FALSE(s.Next(committed).pull);

  s.Say(0, State(kA, 50, 5, 71));  // s1's rank died in attempt 71, so 50 is redone
  CHECK_FALSE(s.Next(committed).pull);
  s.Say(1, State(kB, 50, 6, 72));
  CHECK_FALSE(s.Next(committed).pull);  // the parts are of two attempts
  s.Say(0, State(kA, 50, 7, 72));
  choice = s.Next(committed);
  REQUIRE(choice.pull);
  CHECK(choice.target.whole.root == 13);
  CHECK(choice.target.parts[0] == State(kA, 50, 7));
}

TEST_CASE("agents that are ahead are asked for the last state that all have") {
  Setup s(2);
  s.Say(0, State(kA, 1, 1, 70));
  s.Say(1, State(kB, 1, 2, 70));
  s.Say(0, State(kA, 2, 3, 71));
  s.Say(0, State(kA, 3, 4, 72));
  auto choice = s.Next({});
  REQUIRE(choice.pull);
  CHECK(choice.target.whole.id.version == 1);
  s.Say(1, State(kB, 2, 8, 71));
  choice = s.Next(choice.target.whole);
  REQUIRE(choice.pull);
  CHECK(choice.target.parts[0] == State(kA, 2, 3));
  CHECK(choice.target.whole.root == 11);
}

TEST_CASE("a state that an agent passed over unseen is asked for by its attempt") {
  Setup s(2);
  s.Say(0, State(kA, 5, 1, 75));
  s.Say(1, State(kB, 3, 2, 73));
  const auto choice = s.Next({});
  REQUIRE(choice.pull);
  CHECK(choice.target.parts[0].id.version == 3);
  CHECK(choice.target.parts[0].attempt == 73);
  CHECK_FALSE(choice.target.root_known);
}

TEST_CASE("a rollback is for all agents") {
  Setup s(2);
  s.Say(0, State(kA, 5, 1));
  s.Say(1, State(kB, 5, 2));
  const Identity committed = s.Next({}).target.whole;
  s.Say(0, State(kA, 6, 3, 9, 2));
  CHECK_FALSE(s.Next(committed).pull);
  s.Say(1, State(kB, 6, 4, 9, 2));
  CHECK(s.Next(committed).pull);
}

TEST_CASE("one offload is one version though an agent was rolled back alone before it") {
  Setup s(2);
  s.Say(0, State(kA, 5, 1, 70));
  s.Say(1, State(kB, 5, 2, 70));
  const Identity before = s.Next({}).target.whole;
  s.Say(0, State(kA, 4, 3, 9, 2));  // s1's own rollback failed
  CHECK_FALSE(s.Next(before).pull);
  s.Say(0, State(kA, 6, 4, 71, 2));
  s.Say(1, State(kB, 6, 5, 71, 1));
  const auto choice = s.Next(before);
  REQUIRE(choice.pull);
  CHECK(choice.target.whole.id == StateId{2, 6});
  CHECK(choice.target.parts[1] == State(kB, 6, 5, 71, 1));
  CHECK(IsLater(choice.target.whole, before));
  // s1 catches up in epochs now, but falls behind in versions. The whole's id must still rise.
  s.Say(1, State(kB, 3, 6, 8, 2));
  CHECK_FALSE(s.Next(choice.target.whole).pull);
  s.Say(0, State(kA, 4, 7, 72, 3));
  s.Say(1, State(kB, 4, 8, 72, 2));
  const auto last = s.Next(choice.target.whole);
  REQUIRE(last.pull);
  CHECK(IsLater(last.target.whole, choice.target.whole));
}

TEST_CASE("an agent that lost its memory makes another history of the whole") {
  Setup s(2);
  s.Say(0, State(kA, 5, 1));
  s.Say(1, State(kB, 5, 2));
  const Identity committed = s.Next({}).target.whole;
  s.Say(1, State(kC, 5, 2));
  CHECK(s.Next(committed).pull);
  CHECK_FALSE(s.Next(committed).target.whole.lineage == committed.lineage);
}

TEST_CASE("the combined lineage does not depend on the agents' order") {
  CHECK(CombineLineages({kA, kB}) == CombineLineages({kB, kA}));
  CHECK(CombineLineages({kA}) == kA);
  CHECK_FALSE(CombineLineages({kA, kB}) == CombineLineages({kA, kC}));
  CHECK(CombineLineages({kA, Hash128{}}) == Hash128{});
}

TEST_CASE("a follower is attached once every agent has spoken, until one of them ends") {
  Setup s(2);
  s.Say(0, State(kA, 1, 1));
  CHECK_FALSE(s.follower.attached());
  s.Say(1, State(kB, 1, 1));
  CHECK(s.follower.attached());
  s.follower.NoteEnd(0);
  CHECK_FALSE(s.follower.attached());
  CHECK(s.follower.attached(1));
  CHECK(s.Next({}).why == "not attached to sender s0");
}

TEST_CASE("failures are retried ever later, at two seconds at the latest, and not in step") {
  Setup s(1);
  s.Say(0, State(kA, 1, 1));
  std::chrono::nanoseconds longest{0};
  for (int i = 0; i < 10; ++i) {
    s.follower.NotePullEnd(absl::UnavailableError("x"), false, s.now);
    const auto choice = s.Next({});
    CHECK_FALSE(choice.pull);
    CHECK(s.Next({}, true).pull);  // a request does not wait
    CHECK(choice.again > s.now);
    longest = std::max<std::chrono::nanoseconds>(longest, choice.again - s.now);
    s.now = choice.again;
    CHECK(s.Next({}).pull);
  }
  CHECK(longest > milliseconds(1000));
  CHECK(longest <= milliseconds(2000));
  s.follower.NotePullEnd(absl::OkStatus(), true, s.now);
  CHECK(s.Next({}).pull);
  // One who tells of more than a pull brings is not asked again and again without a pause.
  for (int i = 0; i < 3; ++i) {
    s.follower.NotePullEnd(absl::OkStatus(), false, s.now);
    const auto choice = s.Next({});
    CHECK_FALSE(choice.pull);
    CHECK(choice.again > s.now);
    s.now = choice.again;
  }
}

}  // namespace
}  // namespace deltawire::receiver::follower_test
