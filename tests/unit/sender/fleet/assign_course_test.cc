// What a sender tells the receivers of a site, over time: who is handed out and who is not, what a
// death and a return change, and what a restart of the sender does not.
#include "sender/agent/fleet/assign_course.h"

#include <algorithm>
#include <catch2/catch.hpp>

namespace deltawire::sender::assign_course_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr AssignCourse::Time kStart{std::chrono::hours(1)};

std::string AddressOf(const std::string& id) { return "10.0.0." + id.substr(1) + ":7710"; }

SiteReceiver One(const std::string& id, const std::string& site = "west", bool serves = true) {
  return {.id = id,
          .offer = {.site = site, .address = serves ? AddressOf(id) : ""},
          .peer = "ipv4:10.0.0." + id.substr(1) + ":50000"};
}

/// A sender's receivers, which do as they are told.
struct Fleet {
  AssignCourse course;
  AssignCourse::Time now = kStart;
  std::vector<SiteReceiver> here;
  std::map<std::string, SitePlace> places;

  explicit Fleet(uint32_t fan_out = 2) : course({.fan_out = fan_out}, kStart) {}
  void Update() {
    places = course.Update(here, now);
    for (SiteReceiver& r : here) {
      const Assignment& told = places.at(r.id).told;
      if (!told.undecided) r.follows = told.upstreams.empty() ? "" : told.upstreams.front();
    }
  }
  void Join(SiteReceiver r) {
    here.push_back(std::move(r));
    Update();
  }
  SiteReceiver Leave(const std::string& id) {
    const auto at = std::ranges::find(here, id, &SiteReceiver::id);
    SiteReceiver gone = *at;
    here.erase(at);
    Update();
    return gone;
  }
  /// Time goes on, with an update whenever the course asks for one.
  void Pass(milliseconds time) {
    const auto end = now + time;
    while (course.again() <= end) {
      now = std::max(now, course.again());
      Update();
    }
    now = end;
  }
  std::string ParentOf(const std::string& id) { return places.at(id).parent; }
};

}  // namespace

TEST_CASE("assignments: the first that serves pulls from the sender, others are told of it") {
  Fleet f;
  f.Join(One("n1"));
  f.Join(One("n2"));
  f.Join(One("n3"));
  f.Join(One("n4"));
  CHECK(f.ParentOf("n1").empty());
  CHECK(f.ParentOf("n2") == "n1");
  CHECK(f.ParentOf("n3") == "n1");
  CHECK(f.ParentOf("n4") == "n2");
  // The back-ups: who takes the place of the one that is followed, and whom that one follows.
  CHECK(f.places.at("n3").told.upstreams == std::vector{AddressOf("n1"), AddressOf("n2")});
  CHECK(f.places.at("n2").told.upstreams == std::vector{AddressOf("n1")});
  CHECK(f.places.at("n4").told.upstreams == std::vector{AddressOf("n2"), AddressOf("n1")});
}

TEST_CASE("assignments: a moment's absence changes nothing, a longer one moves the followers") {
  Fleet f;
  for (const char* id : {"n1", "n2", "n3", "n4"}) f.Join(One(id));
  const auto before = f.places;
  const SiteReceiver gone = f.Leave("n1");
  CHECK(f.places.at("n2") == before.at("n2"));
  f.Pass(milliseconds(900));
  f.Join(gone);
  CHECK(f.places == before);

  f.Leave("n1");
  f.Pass(milliseconds(1100));
  CHECK(f.ParentOf("n2").empty());
  CHECK(f.ParentOf("n3") == "n2");
  CHECK(f.places.at("n4").parent == "n2");
  // It comes back as one of them, and nobody moves for it.
  const auto without = f.places;
  f.Join(gone);
  for (const auto& [id, place] : without) CHECK(f.places.at(id).parent == place.parent);
  CHECK_FALSE(f.ParentOf("n1").empty());
}

TEST_CASE("assignments: one that comes and goes is not handed out for a growing while") {
  Fleet f(1);
  f.Join(One("n1"));
  f.Join(One("n2"));
  f.Join(One("n3"));
  SiteReceiver flapping = One("n4");
  milliseconds doubt{0};
  for (int i = 0; i < 5; ++i) {
    CAPTURE(i);
    f.Join(flapping);
    const auto returned = f.now;
    const bool doubted = !f.places.at("n4").not_handed_out.empty();
    CHECK(doubted == (i > 1));  // a restart is none of that
    if (doubted) {
      while (!f.places.at("n4").not_handed_out.empty()) f.Pass(milliseconds(500));
      const auto took = std::chrono::duration_cast<milliseconds>(f.now - returned);
      CHECK(took > 2 * doubt);
      doubt = took;
    }
    flapping = f.Leave("n4");
    flapping.follows = "";
    f.Pass(seconds(2));
  }
  CHECK(doubt >= seconds(30));
  // Where nobody else serves it is taken nevertheless.
  Fleet alone;
  alone.Join(One("n9", "west", false));
  SiteReceiver only = One("n4");
  for (int i = 0; i < 4; ++i) {
    alone.Join(only);
    only = alone.Leave("n4");
    alone.Pass(seconds(2));
  }
  alone.Join(only);
  CHECK(alone.ParentOf("n9") == "n4");
}

TEST_CASE("assignments: one that nobody reaches who is told to follow it is not handed out") {
  Fleet f;
  for (const char* id : {"n1", "n2", "n3"}) f.Join(One(id));
  REQUIRE(f.ParentOf("n2") == "n1");
  // They cannot reach it, and pull from the sender.
  const auto stray = [&] {
    for (SiteReceiver& r : f.here) {
      if (f.ParentOf(r.id) == "n1") r.follows = "";
    }
  };
  const auto reported = [&](milliseconds time) {  // a report does not change what is told
    const auto end = f.now + time;
    while (f.now < end) {
      f.now += milliseconds(500);
      f.places = f.course.Update(f.here, f.now);
    }
  };
  stray();
  reported(seconds(9));
  CHECK(f.ParentOf("n2") == "n1");
  // One of them that is in a long pull says nothing of it, and one that follows says that it can.
  f.here[1].busy = f.here[2].busy = true;
  reported(seconds(20));
  CHECK(f.ParentOf("n2") == "n1");
  f.here[1].busy = f.here[2].busy = false;
  f.here[2].follows = AddressOf("n1");
  reported(seconds(20));
  CHECK(f.ParentOf("n2") == "n1");
  stray();
  reported(seconds(11));
  CHECK(f.ParentOf("n2").empty());
  CHECK(f.ParentOf("n3") == "n2");
  CHECK(f.ParentOf("n1") == "n2");
  CHECK(f.places.at("n1").not_handed_out == "none of its assigned followers has reached it");
  for (SiteReceiver& r : f.here) r.follows = r.id == "n2" ? "" : AddressOf("n2");
  reported(seconds(31));
  CHECK(f.places.at("n1").not_handed_out.empty());
  CHECK(f.ParentOf("n1") == "n2");
}

TEST_CASE("assignments: who cannot or may not be followed is not handed out") {
  Fleet f;
  f.Join(One("n1"));
  const auto reason = [&](const SiteReceiver& r) {
    f.Join(r);
    const std::string why = f.places.at(r.id).not_handed_out;
    f.Leave(r.id);
    f.Pass(seconds(2));
    return why;
  };
  SiteReceiver r = One("n2");
  CHECK(reason(r).empty());
  r.offer.address = AddressOf("n1");
  CHECK(reason(r) == AddressOf("n1") + " is the address of n1 already");
  r.offer.address = "127.0.0.1:7710";
  CHECK(reason(r).find("only be dialed from its own machine") != std::string::npos);
  r.offer.address = "0.0.0.0:7710";
  CHECK(reason(r).find("names no machine") != std::string::npos);
  r.offer.address = "no address";
  CHECK(reason(r).find("is not an address that can be dialed") != std::string::npos);
  r = One("n3");
  r.paused = true;
  CHECK(reason(r) == "it is paused");
  r = One("n4");
  r.barred = true;
  CHECK(reason(r).find("principal") != std::string::npos);
  r = One("n5");
  r.member = true;
  CHECK(reason(r) == "it is a member of a group");
}

TEST_CASE("assignments: members of groups pull from the sender, and have no followers") {
  Fleet f(1);
  SiteReceiver member = One("n1");
  member.member = true;
  f.Join(member);
  f.Join(One("n2"));
  f.Join(One("n3"));
  CHECK(f.ParentOf("n1").empty());
  CHECK(f.ParentOf("n2").empty());
  CHECK(f.ParentOf("n3") == "n2");
}

TEST_CASE(
    "assignments: one that is paused loses its followers and gets its place back in the end") {
  Fleet f;
  for (const char* id : {"n1", "n2", "n3"}) f.Join(One(id));
  f.here[0].paused = true;
  f.Update();
  CHECK(f.ParentOf("n2").empty());
  CHECK(f.ParentOf("n3") == "n2");
  CHECK(f.ParentOf("n1") == "n2");
  f.here[0].paused = false;
  f.Update();
  CHECK(f.ParentOf("n1") == "n2");
  CHECK(f.places.at("n1").not_handed_out.empty());
}

TEST_CASE("assignments: a tree outlasts a restart of the sender, in whatever order it returns") {
  for (const bool reversed : {false, true}) {
    CAPTURE(reversed);
    Fleet first;
    for (const char* id : {"n1", "n2", "n3", "n4", "n5", "n6"}) first.Join(One(id));
    first.Leave("n1");
    first.Pass(seconds(2));
    std::vector<SiteReceiver> all = first.here;
    if (reversed) std::ranges::reverse(all);
    Fleet again;
    for (const SiteReceiver& r : all) {
      again.Join(r);
      again.now += milliseconds(50);
      if (!r.follows.empty()) CHECK(again.places.at(r.id).told.undecided);
    }
    again.Pass(seconds(5));
    for (const auto& [id, place] : first.places) CHECK(again.places.at(id).parent == place.parent);
  }
}

TEST_CASE("assignments: one that does not serve waits a little for one that does") {
  Fleet f;
  f.Join(One("n1", "west", false));
  CHECK(f.places.at("n1").told.undecided);
  f.now += milliseconds(500);
  f.Join(One("n2"));
  CHECK(f.ParentOf("n1") == "n2");
  Fleet alone;
  alone.Join(One("n1", "west", false));
  alone.Pass(seconds(3));
  CHECK_FALSE(alone.places.at("n1").told.undecided);
  CHECK(alone.places.at("n1").told.upstreams.empty());
}

}  // namespace deltawire::sender::assign_course_test
