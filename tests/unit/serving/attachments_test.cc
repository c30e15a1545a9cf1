// Attached receivers: numbered events, beats, silent receivers, names that two receivers use, and
// waits that a change ends.
#include "common/serving/attachments.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "common/base/call_end.h"
#include "tests/support/eventually.h"
#include "tests/support/next_event.h"

namespace deltawire::attachments_test {
namespace {

using std::chrono::milliseconds;
using testing::NextEvent;

// No case waits for a silence this long; cases about silence have shorter limits.
constexpr AttachmentLimits kPatient{.beat = milliseconds(20), .silence = std::chrono::hours(1)};
constexpr AttachmentLimits kStrict{.beat = milliseconds(10), .silence = milliseconds(100)};

VersionInfo Version(uint64_t version, uint64_t lineage = 1) {
  VersionInfo info;
  info.identity = {.lineage = {lineage, 7}, .id = {1, version}, .root = version * 10};
  return info;
}

/// A caller that has receivers of "m" sync.
struct Caller {
  Caller(Attachments& a, const std::vector<std::string>& ids, bool full) {
    auto asked = a.AskSync("m", ids, full, [this] { ++told; });
    REQUIRE(asked.ok());
    call = *std::move(asked);
  }
  /// The phases that are there to read now.
  std::vector<ReceiverPhase> Hears() {
    std::vector<ReceiverPhase> phases;
    for (auto step = call->Poll(); step.ok(); step = call->Poll()) {
      over = step->over;
      if (!step->tell) break;
      phases.push_back(step->tell->phase);
    }
    return phases;
  }
  std::shared_ptr<SyncCall> call;
  int told = 0;
  bool over = false;
};

/// The request that goes down to a receiver now; 0: none.
uint64_t RequestTo(Attachments& a, uint64_t token) {
  const auto due = a.TakeEvent(token);
  REQUIRE(due.ok());
  return due->event ? due->event->sync_request : 0;
}

TEST_CASE("attachments: events count from one, and repeat the newest when there is no news") {
  Attachments a(kPatient);
  a.feed().Publish("m", {});
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  uint64_t number = 0;
  const auto next = [&] {
    const auto event = NextEvent(a, *token);
    REQUIRE(event.ok());
    CHECK(event->number == ++number);
    return *event;
  };
  CHECK(next().newest.identity.empty());
  a.feed().Publish("m", Version(1));
  CHECK(next().newest.identity == Version(1).identity);
  // Nothing happens, so the next event is a beat, which repeats the newest version.
  CHECK(next().newest.identity == Version(1).identity);
  CHECK(next().newest.identity.root == 10);
  a.feed().Publish("m", Version(3));
  a.feed().Publish("m", Version(2));  // an older version, by a thread that comes late
  CHECK(next().newest.identity == Version(3).identity);
  a.feed().Publish("m", Version(1, 2));  // the model was made anew, so it has another lineage
  CHECK(next().newest.identity == Version(1, 2).identity);
}

TEST_CASE("attachments: receivers that say a site are told whom to follow, with each event") {
  struct Observer : SiteObserver {
    void SiteReported(const std::string& model, bool changed) override {
      seen.push_back(model + (changed ? " changed" : " reported"));
    }
    void SiteGone(const std::string& model) override { seen.push_back(model + " gone"); }
    std::vector<std::string> take() { return std::exchange(seen, {}); }
    std::vector<std::string> seen;
  } observer;
  using Seen = std::vector<std::string>;
  Attachments a(kPatient);
  a.feed().Publish("m", Version(1));
  const SiteOffer offer{.site = "west", .address = "10.0.0.1:7710"};
  const auto before = a.Attach("m", "before", "p0", "", offer);
  CHECK_FALSE(a.TakeEvent(*before)->event->assignment.has_value());  // nobody assigns here
  a.SetSiteObserver(&observer);
  const auto r = a.Attach("m", "r", "p", "", offer), plain = a.Attach("m", "plain", "q");
  a.Report(*r, {});
  a.Report(*plain, {});
  CHECK(observer.take() == Seen{"m changed"});
  int news = 0;
  a.OnNews(*r, [&] { ++news; });
  CHECK(a.TakeEvent(*r)->event->assignment->undecided);
  CHECK_FALSE(a.TakeEvent(*plain)->event->assignment.has_value());
  const Assignment told{.upstreams = {"10.0.0.2:7710"}};
  a.SetAssignments("m", {{"r", told}, {"plain", told}, {"nobody", told}});
  CHECK(news == 1);
  CHECK(a.TakeEvent(*r)->event->assignment == told);
  a.SetAssignments("m", {{"r", told}});
  CHECK(news == 1);
  CHECK(NextEvent(a, *r)->assignment == told);  // a beat repeats it
  CHECK_FALSE(NextEvent(a, *plain)->assignment.has_value());
  // What says whether it can serve is a change; what it does is none.
  a.Report(*r, {.phase = ReceiverPhase::kPulling});
  a.Report(*r, {.phase = ReceiverPhase::kPulling, .follows = "10.0.0.2:7710"});
  a.Report(*r, {.phase = ReceiverPhase::kPaused, .follows = "10.0.0.2:7710"});
  for (int i = 0; i < 2; ++i) {
    a.Report(*r, {.phase = ReceiverPhase::kIdle, .follows = "10.0.0.2:7710", .barred = true});
  }
  CHECK(observer.take() == Seen{"m reported", "m changed", "m changed", "m changed", "m reported"});
  CHECK(a.Receivers("m")[1].offer == offer);
  a.Detach(*plain);
  a.Detach(*r);
  CHECK(observer.take() == Seen{"m gone"});
  // One that takes the place of its own older attachment has no word yet.
  const auto again = a.Attach("m", "r", "p", "", offer);
  CHECK(a.TakeEvent(*again)->event->assignment->undecided);
}

TEST_CASE(
    "attachments: a version that comes is told of at once, and in each event until it is gone") {
  Attachments a({.beat = std::chrono::hours(1), .silence = std::chrono::hours(1)});
  a.feed().Publish("m", Version(1));
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  int news = 0;
  a.OnNews(*token, [&] { ++news; });
  CHECK(a.TakeEvent(*token)->event->incoming == IncomingNews{});
  CHECK_FALSE(a.TakeEvent(*token)->event);
  const IncomingNews two{Version(2).identity, Version(1).identity};
  a.feed().SetIncoming("m", two);
  CHECK(news == 1);
  const auto told = a.TakeEvent(*token);
  REQUIRE(told->event);
  CHECK(told->event->incoming == two);
  CHECK(told->event->newest.identity == Version(1).identity);
  CHECK_FALSE(a.TakeEvent(*token)->event);
  a.feed().SetIncoming("m", two);  // its pull began anew
  CHECK(a.TakeEvent(*token)->event);
  a.feed().SetIncoming("m", {});
  CHECK(news == 2);  // whoever pulls it learns from the pull
  CHECK_FALSE(a.TakeEvent(*token)->event);
  a.feed().Publish("m", Version(2));
  CHECK(a.TakeEvent(*token)->event->incoming == IncomingNews{});
  CHECK(a.CountsOf("m").attached == 1);
  CHECK(a.CountsOf("other").attached == 0);
}

TEST_CASE("attachments: members of groups are told their word, at once and with each event") {
  struct Observer : MemberObserver {
    void Reported(const std::string&, const std::string& id, const ReceiverReport& r) override {
      seen.push_back(id + (r.group.prepared ? " prepared" : " reported"));
    }
    void Detached(const std::string& model, const std::string& id) override {
      seen.push_back(model + "/" + id + " gone");
    }
    std::vector<std::string> seen;
  } observer;
  Attachments a(kPatient);
  a.SetMemberObserver(&observer);
  GroupWord word{.name = "g", .round = 1, .prepare = Version(2).identity, .commit = {}};
  a.SetWords("m", {{"r", word}});  // before anybody is there
  CHECK(observer.seen == std::vector<std::string>{"m/r gone"});
  observer.seen.clear();
  a.feed().Publish("m", Version(1));
  const auto r = a.Attach("m", "r", "p"), other = a.Attach("m", "other", "q");
  REQUIRE(r.ok());
  REQUIRE(other.ok());
  CHECK(a.TakeEvent(*r)->event->group == word);
  CHECK(a.TakeEvent(*other)->event->group.name.empty());
  CHECK(NextEvent(a, *r)->group == word);  // a beat repeats it
  int news = 0;
  a.OnNews(*r, [&] { ++news; });
  a.SetWords("m", {{"r", word}});
  CHECK(news == 0);  // the same word is no news
  word.commit = word.prepare;
  word.prepare = {};
  a.SetWords("m", {{"r", word}});
  CHECK(news == 1);
  CHECK(a.TakeEvent(*r)->event->group == word);
  CHECK_FALSE(a.TakeEvent(*r)->event.has_value());

  ReceiverReport report;
  report.group.prepared = true;
  a.Report(*r, report);
  a.Report(*other, report);
  CHECK(observer.seen == std::vector<std::string>{"r prepared"});
  const auto again = a.Attach("m", "r", "p");  // takes the older one's place
  REQUIRE(again.ok());
  a.Detach(*again);
  a.Detach(*other);
  CHECK(observer.seen == std::vector<std::string>{"r prepared", "m/r gone", "m/r gone"});
  // Taken out of the group, it hears so.
  const auto last = a.Attach("m", "r", "p");
  CHECK(a.TakeEvent(*last)->event->group == word);
  a.SetWords("m", {});
  CHECK(a.TakeEvent(*last)->event->group.name.empty());
}

TEST_CASE("attachments: a member that falls silent is gone for its group") {
  struct Observer : MemberObserver {
    void Reported(const std::string&, const std::string&, const ReceiverReport&) override {}
    void Detached(const std::string&, const std::string&) override { ++gone; }
    int gone = 0;
  } observer;
  Attachments a(kStrict);
  a.SetMemberObserver(&observer);
  a.SetWords("m", {{"r", GroupWord{.name = "g", .round = 0, .prepare = {}, .commit = {}}}});
  observer.gone = 0;
  a.feed().Publish("m", Version(1));
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  StatusOr<SenderEvent> event = NextEvent(a, *token);
  while (event.ok()) event = NextEvent(a, *token);
  CHECK(event.status().code() == StatusCode::kDeadlineExceeded);
  CHECK(observer.gone == 1);
}

/// Holds up whoever tells it of a site, as a thread that the machine has taken its core from.
struct SlowSites : SiteObserver {
  void SiteReported(const std::string&, bool) override { Wait(); }
  void SiteGone(const std::string&) override { Wait(); }
  void Wait() {
    std::unique_lock lock(mu);
    if (std::this_thread::get_id() != slow) return;
    waits = true;
    cv.notify_all();
    cv.wait(lock, [this] { return goes_on; });
  }
  void AwaitIt() {
    std::unique_lock lock(mu);
    cv.wait(lock, [this] { return waits; });
  }
  void GoOn() {
    std::lock_guard lock(mu);
    goes_on = true;
    cv.notify_all();
  }
  std::mutex mu;
  std::condition_variable cv;
  std::thread::id slow;
  bool waits = false, goes_on = false;
};

TEST_CASE("attachments: a member's group hears what happened in the order in which it did") {
  struct Observer : MemberObserver {
    void Reported(const std::string&, const std::string&, const ReceiverReport& r) override {
      seen.push_back("reported " + std::to_string(r.event));
    }
    void Detached(const std::string&, const std::string&) override { seen.push_back("gone"); }
    std::vector<std::string> seen;
  } observer;
  SlowSites sites;
  Attachments a(kPatient);
  a.SetMemberObserver(&observer);
  a.SetSiteObserver(&sites);
  a.SetWords("m", {{"r", GroupWord{.name = "g", .round = 0, .prepare = {}, .commit = {}}}});
  const SiteOffer here{.site = "s"};
  const auto first = a.Attach("m", "r", "p", "", here);
  REQUIRE(first.ok());
  observer.seen.clear();
  const auto slowly = [&](const std::function<void()>& what) {
    return std::thread([&sites, what] {
      {
        std::lock_guard lock(sites.mu);
        sites.slow = std::this_thread::get_id();
      }
      what();
    });
  };
  SECTION("the end of an attachment, and the next one's report") {
    std::thread slow = slowly([&] { a.Detach(*first); });
    sites.AwaitIt();
    const auto second = a.Attach("m", "r", "p", "", here);
    CHECK(second.ok());
    a.Report(second.value_or(0), {.event = 1});
    sites.GoOn();
    slow.join();
    CHECK(observer.seen == std::vector<std::string>{"gone", "reported 1"});
  }
  SECTION("a last report, and the end") {
    std::thread slow = slowly([&] { a.Report(*first, {.event = 1}); });
    sites.AwaitIt();
    a.Detach(*first);
    sites.GoOn();
    slow.join();
    CHECK(observer.seen == std::vector<std::string>{"reported 1", "gone"});
  }
}

TEST_CASE("attachments: news comes by callback, in which events can be taken") {
  Attachments a(kPatient);
  a.feed().Publish("m", Version(1));
  a.feed().Publish("other", Version(1));
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  std::vector<uint64_t> seen;
  StatusCode ended = StatusCode::kOk;
  a.OnNews(*token, [&] {
    const auto due = a.TakeEvent(*token);  // would hang if a lock were held
    if (!due.ok()) ended = due.status().code();
    if (due.ok() && due->event) seen.push_back(due->event->newest.identity.id.version);
  });
  REQUIRE(a.TakeEvent(*token)->event.has_value());  // the first one, whatever the news
  const auto nothing = a.TakeEvent(*token);
  REQUIRE(nothing.ok());
  CHECK_FALSE(nothing->event.has_value());
  CHECK(nothing->again > SteadyClock::now());
  a.feed().Publish("m", Version(2));
  a.feed().Publish("other", Version(2));
  a.feed().Publish("m", Version(3));
  CHECK(seen == std::vector<uint64_t>{2, 3});
  CHECK(a.Attach("m", "r", "p").ok());  // takes the place of the first
  CHECK(ended == StatusCode::kAborted);
  CHECK(absl::IsAborted(a.TakeEvent(*token).status()));
}

TEST_CASE("attachments: a commit is told of once, and not what was held at the attach") {
  Attachments a(kPatient);
  std::vector<std::string> told;
  a.SetOnCommitted([&](const std::string& model, const Identity& id, const PullStats& pull) {
    told.push_back(fmt::format("{} {} {}", model, id.id.version, pull.payload_bytes));
    CHECK(a.Receivers("m").size() == 1);  // would hang if a lock were held
  });
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  const auto report = [&](const Identity& committed, uint64_t bytes) {
    a.Report(*token, {.committed = committed, .last_pull = {.payload_bytes = bytes}});
  };
  report(Version(1).identity, 10);  // it held this one when it came
  CHECK(told.empty());
  report(Version(2).identity, 20);
  report(Version(2).identity, 20);
  report({}, 20);  // its only buffer is being changed
  report(Version(2).identity, 20);
  report(Version(3).identity, 30);
  CHECK(told == std::vector<std::string>{"m 2 20", "m 3 30"});
}

TEST_CASE("attachments: one principal has its own limit") {
  AttachmentLimits limits = kPatient;
  limits.most_per_principal = 2;
  Attachments a(limits);
  CHECK(a.Attach("m", "r1", "p1", "rollout").ok());
  CHECK(a.Attach("m", "r2", "p2", "rollout").ok());
  CHECK(absl::IsResourceExhausted(a.Attach("m", "r3", "p3", "rollout").status()));
  CHECK(a.Attach("m", "r3", "p3", "another").ok());
  CHECK(a.Attach("m", "r4", "p4").ok());
}

TEST_CASE("attachments: a part with equal bytes under another attempt is news") {
  Attachments a(kPatient);
  VersionInfo info = Version(1);
  info.identity.attempt = 5;
  a.feed().Publish("m", info);
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  CHECK(NextEvent(a, *token)->newest.identity.attempt == 5);
  info.identity.attempt = 6;
  a.feed().Publish("m", info);
  CHECK(NextEvent(a, *token)->newest.identity.attempt == 6);
}

TEST_CASE("attachments: a long message of a peer is cut to what a person can read") {
  Attachments a(kPatient);
  a.feed().Publish("m", Version(1));
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  const auto kept = [&](const std::string& message) {
    a.Report(*token, {.message = message});
    REQUIRE(a.Receivers("m").size() == 1);
    return a.Receivers("m")[0].report.message;
  };
  CHECK(kept(std::string(1 << 20, 'm')) == std::string(kMaxReportMessage, 'm'));
  // Half a character would make the whole list of receivers unreadable: gRPC's strings are UTF-8.
  std::string accents = "a";
  for (size_t i = 0; i < kMaxReportMessage / 2; ++i) accents += "\xc3\xa9";
  CHECK(kept(accents) == accents.substr(0, kMaxReportMessage - 1));
}

TEST_CASE("attachments: an answer to a sync that was not asked for is ignored") {
  Attachments a(kPatient);
  a.feed().Publish("m", Version(1));
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  // The receiver claims beforehand that all of the next syncs have failed.
  for (uint64_t n = 1; n < 100; ++n)
    a.Report(*token, {.phase = ReceiverPhase::kFailed, .sync_request = n});
  Caller caller(a, {}, false);
  const uint64_t request = RequestTo(a, *token);
  REQUIRE(request != 0);
  CHECK(caller.Hears() == std::vector{ReceiverPhase::kAsked});
  for (uint64_t n = 1; n < 100; ++n) {
    if (n != request) a.Report(*token, {.phase = ReceiverPhase::kFailed, .sync_request = n});
  }
  CHECK(caller.Hears().empty());
  CHECK_FALSE(caller.over);
  a.Report(*token, {.phase = ReceiverPhase::kCommitted, .sync_request = request});
  CHECK(caller.Hears() == std::vector{ReceiverPhase::kCommitted});
  CHECK(caller.over);
}

TEST_CASE("attachments: a sync is full only if somebody who waits for it wants that") {
  Attachments a(kPatient);
  a.feed().Publish("m", Version(1));
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  REQUIRE(RequestTo(a, *token) == 0);
  std::optional<Caller> gone(std::in_place, a, std::vector<std::string>(), true);
  const bool shared = GENERATE(false, true);  // with somebody who came before it went
  CAPTURE(shared);
  std::optional<Caller> early;
  if (shared) early.emplace(a, std::vector<std::string>(), false);
  gone.reset();  // before its request went down
  Caller plain(a, {}, false);
  const auto due = a.TakeEvent(*token);
  REQUIRE((due.ok() && due->event));
  CHECK(due->event->sync_request != 0);
  CHECK_FALSE(due->event->force_full);
}

TEST_CASE("attachments: an older version is told of where versions are told of in order") {
  Attachments a(kPatient);
  a.feed().Publish("m", Version(5));
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  CHECK(NextEvent(a, *token)->newest.identity == Version(5).identity);
  a.feed().Publish("m", Version(4));  // was overtaken on its way
  CHECK(NextEvent(a, *token)->newest.identity == Version(5).identity);
  a.feed().Publish("m", Version(4), true);
  CHECK(NextEvent(a, *token)->newest.identity == Version(4).identity);
}

TEST_CASE("attachments: each event says what the relay said last, until its model is forgotten") {
  Attachments a(kPatient);
  a.feed().Publish("m", Version(1));
  const RelayNews news{
      .fetching = Version(2).identity, .fetched_bytes = 7, .applying = true, .path = {3, 4}};
  a.feed().SetRelay("m", news);
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  CHECK(NextEvent(a, *token)->relay == news);
  CHECK(NextEvent(a, *token)->relay == news);  // a beat
  a.feed().Forget("m");
  a.feed().Publish("m", Version(1));
  CHECK(NextEvent(a, *token)->relay == RelayNews{});
}

TEST_CASE("attachments: a receiver that falls silent is detached and counted") {
  Attachments a(kStrict);
  a.feed().Publish("m", Version(1));
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  const bool ever = GENERATE(false, true);
  const bool talks_on = GENERATE(false, true);
  CAPTURE(ever, talks_on);
  StatusOr<SenderEvent> event = NextEvent(a, *token);
  if (ever) a.Report(*token, {.event = 1});
  while (event.ok()) {
    event = NextEvent(a, *token);
    // Reports that never acknowledge a newer event are no sign that events arrive.
    if (talks_on) a.Report(*token, {.event = ever ? uint64_t{1} : 0});
  }
  CHECK(absl::IsDeadlineExceeded(event.status()));
  CHECK(event.status().message().find("receiver \"r\" at p") != std::string::npos);
  CHECK(a.CountsOf("m").silent == 1);
  CHECK(a.Receivers("m").empty());
}

TEST_CASE("attachments: a receiver that echoes its events stays") {
  Attachments a(kStrict);
  a.feed().Publish("m", Version(1));
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  const auto until = SteadyClock::now() + 3 * kStrict.silence;
  while (SteadyClock::now() < until) {
    const auto event = NextEvent(a, *token);
    REQUIRE(event.ok());
    a.Report(*token, {.event = event->number});
  }
  CHECK(a.CountsOf("m").silent == 0);
}

TEST_CASE("attachments: another peer with the same id is refused while the first is heard of") {
  Attachments a(kPatient);
  a.feed().Publish("m", Version(1));
  const auto first = a.Attach("m", "r", "10.0.0.1:4000");
  REQUIRE(first.ok());
  const Status refused = a.Attach("m", "r", "10.0.0.2:4000").status();
  CHECK(absl::IsAlreadyExists(refused));
  CHECK(refused.message().find("10.0.0.1:4000") != std::string::npos);
  CHECK(absl::IsAlreadyExists(a.MayUse("m", "r", "10.0.0.2:4000", nullptr)));
  bool attached = true;
  CHECK(a.MayUse("m", "other", "10.0.0.2:4000", &attached).ok());
  CHECK(!attached);
  CHECK(a.MayUse("m", "r", "10.0.0.1:4000", &attached).ok());
  CHECK(attached);
  CHECK(a.Attach("other", "r", "10.0.0.2:4000").ok());
  // A receiver's newer attachment takes the place of its older one.
  const auto again = a.Attach("m", "r", "10.0.0.1:4000");
  REQUIRE(again.ok());
  CHECK(absl::IsAborted(NextEvent(a, *first).status()));
  CHECK(NextEvent(a, *again).ok());
  a.Detach(*again);
  CHECK(a.Attach("m", "r", "10.0.0.2:4000").ok());
}

TEST_CASE("attachments: a name is free when its receiver has been silent") {
  Attachments a({.silence = milliseconds(1)});
  a.feed().Publish("m", Version(1));
  const auto first = a.Attach("m", "r", "p1");
  REQUIRE(first.ok());
  const auto deadline = SteadyClock::now() + std::chrono::seconds(30);
  while (!a.Attach("m", "r", "p2").ok()) REQUIRE(SteadyClock::now() < deadline);
  CHECK(absl::IsAborted(NextEvent(a, *first).status()));
}

TEST_CASE("attachments: ids and numbers have limits") {
  Attachments a({.most = 2});
  CHECK(absl::IsInvalidArgument(a.Attach("m", "", "p").status()));
  CHECK(absl::IsInvalidArgument(a.Attach("m", std::string(129, 'r'), "p").status()));
  CHECK(a.Attach("m", std::string(128, 'r'), "p").ok());
  CHECK(a.Attach("m", "2", "p").ok());
  CHECK(absl::IsResourceExhausted(a.Attach("m", "3", "p").status()));
}

TEST_CASE("attachments: whoever watches is called by the change itself, and takes what is newest") {
  Attachments a(kPatient);
  int versions = 0, receivers = 0, others = 0;
  auto listener = a.watchers().Add("m", ModelWatchers::Topic::kVersions, [&] { ++versions; });
  const auto of_receivers =
      a.watchers().Add("m", ModelWatchers::Topic::kReceivers, [&] { ++receivers; });
  const auto of_other =
      a.watchers().Add("other", ModelWatchers::Topic::kReceivers, [&] { ++others; });
  CHECK_FALSE(a.feed().ChangeAfter("m", 0).value().has_value());
  a.feed().Publish("m", Version(1));
  a.feed().Publish("m", Version(2));
  CHECK((versions == 2 && receivers == 2));
  const auto change = a.feed().ChangeAfter("m", 0);
  REQUIRE((change.ok() && change->has_value()));
  CHECK((*change)->info.identity.id.version == 2);
  CHECK_FALSE(a.feed().ChangeAfter("m", (*change)->serial).value().has_value());
  // What receivers do is news of receivers, as far as it changes who has committed what.
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  CHECK(receivers == 3);
  a.Report(*token, {.committed = Version(1).identity});
  a.Report(*token, {.committed = Version(1).identity});
  a.Report(*token, {.phase = ReceiverPhase::kPulling});
  CHECK(receivers == 4);
  Identity another_attempt = Version(1).identity;
  another_attempt.attempt = 9;
  a.Report(*token, {.committed = another_attempt});
  CHECK(receivers == 5);
  a.Detach(*token);
  CHECK(receivers == 6);
  CHECK((versions == 2 && others == 0));
  listener.reset();
  a.feed().Publish("m", Version(3));
  CHECK((versions == 2 && receivers == 7));
  a.Stop(absl::UnavailableError("the sender is stopping"));
  CHECK((receivers == 8 && others == 1));
  CHECK(absl::IsUnavailable(a.feed().ChangeAfter("m", 0).status()));
}

TEST_CASE("attachments: a receiver that is detached for its silence is news of receivers") {
  Attachments a({.silence = milliseconds(1)});
  a.feed().Publish("m", Version(1));
  const auto token = a.Attach("m", "r", "p1");
  REQUIRE(token.ok());
  int receivers = 0;
  const auto listener =
      a.watchers().Add("m", ModelWatchers::Topic::kReceivers, [&] { ++receivers; });
  const auto deadline = SteadyClock::now() + std::chrono::seconds(30);
  while (a.TakeEvent(*token).ok()) REQUIRE(SteadyClock::now() < deadline);
  CHECK(receivers == 1);
}

TEST_CASE("attachments: a slow observer hears a member's newest report, and not each of them") {
  struct Slow : MemberObserver {
    void Reported(const std::string&, const std::string&, const ReceiverReport& report) override {
      heard.push_back(report.bytes_done);
      entered = true;
      testing::Eventually([&] { return go.load(); });
    }
    void Detached(const std::string&, const std::string&) override {}
    std::vector<uint64_t> heard;  // by one thread at a time
    std::atomic<bool> entered{false}, go{false};
  } slow;
  Attachments a(kPatient);
  a.SetMemberObserver(&slow);
  a.feed().Publish("m", Version(1));
  a.SetWords("m", {{"r", {.name = "group"}}});
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  std::jthread first([&] { a.Report(*token, {.bytes_done = 1}); });
  REQUIRE(testing::Eventually([&] { return slow.entered.load(); }));
  for (uint64_t done = 2; done <= 10'000; ++done) a.Report(*token, {.bytes_done = done});
  slow.go = true;
  first.join();
  CHECK(slow.heard == std::vector<uint64_t>{1, 10'000});
}

TEST_CASE("attachments: a sync request goes down, and its answer comes back") {
  Attachments a(kPatient);
  a.feed().Publish("m", Version(1));
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  CHECK(absl::IsNotFound(a.AskSync("m", {"x"}, false, [] {}).status()));
  CHECK(absl::IsFailedPrecondition(a.AskSync("none", {}, false, [] {}).status()));
  Caller caller(a, {"r"}, true);
  CHECK(caller.Hears().empty());
  a.Report(*token, {.phase = ReceiverPhase::kPulling, .bytes_done = 1, .bytes_total = 2});
  CHECK(caller.told == 1);
  CHECK(caller.Hears() == std::vector{ReceiverPhase::kPulling});
  // A beat that says the same is no news.
  a.Report(*token, {.phase = ReceiverPhase::kPulling, .bytes_done = 1, .bytes_total = 2});
  CHECK(caller.told == 1);
  const auto due = a.TakeEvent(*token);
  REQUIRE((due.ok() && due->event));
  CHECK(due->event->force_full);
  a.Report(*token, {.committed = due->event->newest.identity,
                    .phase = ReceiverPhase::kCommitted,
                    .event = due->event->number,
                    .sync_request = due->event->sync_request});
  CHECK(caller.Hears() == std::vector{ReceiverPhase::kCommitted});
  CHECK(caller.over);
}

TEST_CASE("attachments: callers of a sync hear of a receiver that goes, and of the end") {
  Attachments a(kPatient);
  a.feed().Publish("m", Version(1));
  const auto first = a.Attach("m", "r1", "p"), second = a.Attach("m", "r2", "p");
  Caller caller(a, {}, false);
  a.Detach(*first);
  CHECK(caller.told == 1);
  CHECK(caller.Hears() == std::vector{ReceiverPhase::kFailed});
  CHECK_FALSE(caller.over);
  const auto third = a.Attach("m", "r2", "p");  // takes the other attachment's place
  REQUIRE(third.ok());
  CHECK(caller.Hears() == std::vector{ReceiverPhase::kFailed});
  CHECK(caller.over);

  Caller later(a, {}, false);
  a.Stop(Stopping("sender"));
  CHECK(later.told > 0);
  a.Detach(*third);  // its stream ends, too, before the caller looks
  CHECK(absl::IsUnavailable(later.call->Poll().status()));
  CHECK(absl::IsUnavailable(a.AskSync("m", {}, false, [] {}).status()));
  CHECK(absl::IsUnavailable(a.Attach("m", "r2", "p").status()));
}

TEST_CASE(
    "attachments: as many callers as may come have one receiver sync, and none is forgotten") {
  Attachments a(kPatient);
  a.feed().Publish("m", Version(1));
  const auto token = a.Attach("m", "r", "p");
  REQUIRE(token.ok());
  std::vector<std::unique_ptr<Caller>> callers;
  std::deque<uint64_t> requests;
  const auto take = [&] {
    if (const uint64_t request = RequestTo(a, *token)) requests.push_back(request);
  };
  for (int i = 0; i < 500; ++i) {
    callers.push_back(std::make_unique<Caller>(a, std::vector<std::string>(), false));
    take();
  }
  // A receiver has so many requests to answer, and no caller more makes them more.
  CHECK(requests.size() == SyncRequests::kMostSent);
  callers.erase(callers.begin() + 3, callers.begin() + 40);  // they go
  for (size_t answers = 0; !requests.empty(); ++answers) {
    REQUIRE(answers <= SyncRequests::kMostSent);
    a.Report(*token, {.phase = ReceiverPhase::kCommitted, .sync_request = requests.front()});
    requests.pop_front();
    take();
  }
  for (const auto& caller : callers) {
    CHECK(caller->Hears() == std::vector{ReceiverPhase::kCommitted});
    CHECK(caller->over);
  }
}

}  // namespace
}  // namespace deltawire::attachments_test
