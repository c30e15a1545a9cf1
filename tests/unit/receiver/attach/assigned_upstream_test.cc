// Following the one that a sender assigns: what goes on to the replica and from whom, before and
// after an assignment, and what stays with the sender. The upstreams are in memory.
#include "receiver/attach/assigned_upstream.h"

#include <catch2/catch.hpp>
#include <map>
#include <mutex>

#include "tests/support/eventually.h"
#include "tests/unit/receiver/attach/scripted_upstream.h"

namespace deltawire::receiver::assigned_upstream_test {
namespace {

using std::chrono::milliseconds;
using testing::Eventually;

Identity At(uint64_t version) { return {.lineage = {1, 2}, .id = {1, version}, .root = version}; }

constexpr UpstreamChoice::Times kSoon{.settle = milliseconds(10),
                                      .compare_every = std::chrono::hours(1),
                                      .first_doubt = milliseconds(4),
                                      .longest_doubt = milliseconds(60000),
                                      .start_patience = milliseconds(0)};

/// A receiver whose sender is scripted, and so is each relay that it comes to follow.
struct Leaf {
  Leaf() {
    auto one = std::make_unique<ScriptedUpstream>("s");
    sender = one.get();
    sender->Has(At(1));
    up = MakeAssignedUpstream(std::move(one),
                              [this](const std::string& address) {
                                auto relay = std::make_unique<ScriptedUpstream>(address);
                                std::lock_guard lock(mu);
                                if (refused.contains(address))
                                  relay->Refuse(absl::UnavailableError("away"));
                                relay->Has(At(1));
                                relays[address] = relay.get();
                                ++made[address];
                                return relay;
                              },
                              {.model = "m", .seed = 1, .relay = 0, .times = kSoon});
  }
  /// As a replica does whenever its attachment has ended.
  void Attach() {
    ended = false;
    (void)up->Attach(
        "m", {.committed = At(1)},
        [this](const SenderEvent& e) {
          std::lock_guard lock(mu);
          events.push_back(e);
        },
        [this](const Status&) { ended = true; });
  }
  /// The sender tells whom to follow, and the replica attaches there.
  void Assign(std::vector<std::string> upstreams, bool undecided = false) {
    sender->Tell({.assignment = Assignment{std::move(upstreams), undecided}});
  }
  /// Attaches, and follows the first of the relays that the sender assigns.
  void Follow(const std::vector<std::string>& assigned) {
    Attach();
    REQUIRE(Eventually([&] { return sender->attached(); }));
    Assign(assigned);
    REQUIRE(AttachedTo(assigned.front()));
    Relay(assigned.front())->Tell();
  }
  bool AttachedTo(const std::string& address) {
    return Eventually([&] {
      if (ended) Attach();
      return up->in_use() == address && (address == "s" || Relay(address)->attached());
    });
  }
  ScriptedUpstream* Relay(const std::string& address) {
    std::lock_guard lock(mu);
    return relays.at(address);
  }
  size_t Events() {
    std::lock_guard lock(mu);
    return events.size();
  }
  SenderEvent Last() {
    std::lock_guard lock(mu);
    return events.back();
  }
  bool Reported(const std::function<bool(const ReceiverReport&)>& wanted) {
    return Eventually([&] { return std::ranges::any_of(sender->reports(), wanted); });
  }

  std::mutex mu;
  ScriptedUpstream* sender = nullptr;
  std::map<std::string, ScriptedUpstream*> relays;
  std::map<std::string, int> made;
  std::set<std::string> refused;
  std::vector<SenderEvent> events;
  std::atomic<bool> ended = false;
  std::unique_ptr<Upstream> up;
};

}  // namespace

TEST_CASE("assigned: a sender that says nothing of whom to follow is followed itself") {
  Leaf leaf;
  leaf.Attach();
  REQUIRE(Eventually([&] { return leaf.sender->attached(); }));
  leaf.sender->Tell();
  REQUIRE(leaf.Events() == 1);
  CHECK(leaf.Last().newest.identity == At(1));
  CHECK(leaf.Last().number == 1);
  CHECK(leaf.up->OpenPull({})->host == "s");
  leaf.up->NotePullEnd(absl::OkStatus());
  // The replica attaches anew, and the attachment stays.
  leaf.up->Detach();
  REQUIRE(leaf.ended);
  leaf.Attach();
  REQUIRE(Eventually([&] { return leaf.Events() == 2; }));  // at once, without an event
  CHECK(leaf.Last().number == 1);
  CHECK(leaf.sender->counts().attaches == 1);
}

TEST_CASE("assigned: what the sender itself has is known while the relay in use is behind it") {
  Leaf leaf;
  leaf.Attach();
  REQUIRE(Eventually([&] { return leaf.sender->attached(); }));
  CHECK_FALSE(leaf.up->sender_newest().has_value());
  leaf.Assign({"r"});
  REQUIRE(leaf.AttachedTo("r"));
  leaf.Relay("r")->Tell();
  REQUIRE(Eventually([&] { return leaf.Events() > 0; }));
  leaf.sender->Has(At(4));
  leaf.Assign({"r"});
  CHECK(leaf.Last().newest.identity == At(1));
  CHECK(leaf.up->sender_newest() == At(4));
  leaf.sender->End(absl::UnavailableError("gone"));
  CHECK_FALSE(leaf.up->sender_newest().has_value());
}

TEST_CASE("assigned: nothing is pulled from the sender before it has said whom to follow") {
  Leaf leaf;
  leaf.Attach();
  REQUIRE(Eventually([&] { return leaf.sender->attached(); }));
  leaf.Assign({}, true);
  CHECK(leaf.Events() == 0);
  CHECK(absl::IsUnavailable(leaf.up->OpenPull({}).status()));
  leaf.Assign({"r", "b"});
  CHECK(leaf.Events() == 0);
  CHECK(leaf.up->in_use() == "r");
  REQUIRE(leaf.AttachedTo("r"));
  leaf.Relay("r")->Tell();
  CHECK(leaf.Events() == 1);
  CHECK(leaf.up->OpenPull({})->host == "r");
  CHECK(leaf.sender->counts().opens == 0);
  leaf.up->NotePullEnd(absl::OkStatus());
  // What the sender tells of is not the replica's business any more.
  leaf.sender->Has(At(2));
  leaf.Assign({"r", "b"});
  CHECK(leaf.Events() == 1);
  leaf.up->Send({.committed = At(1)});
  CHECK(leaf.Reported([](const ReceiverReport& r) { return r.follows == "r"; }));
  CHECK(leaf.sender->attached());
}

TEST_CASE("assigned: when the relay has gone the back-up is followed, then the sender") {
  Leaf leaf;
  leaf.Follow({"r", "b"});
  leaf.Relay("r")->Refuse(absl::UnavailableError("gone"));
  leaf.Relay("r")->End(absl::UnavailableError("gone"));
  REQUIRE(leaf.AttachedTo("b"));
  // Read before the sender can tell of anything: it may do so once, at any moment from then on.
  const size_t before = leaf.Events();
  leaf.Relay("b")->Refuse(absl::UnavailableError("gone"));
  leaf.Relay("b")->End(absl::UnavailableError("gone"));
  REQUIRE(leaf.AttachedTo("s"));
  REQUIRE(Eventually([&] { return leaf.Events() > before; }));
  CHECK(leaf.up->OpenPull({})->host == "s");
  leaf.up->NotePullEnd(absl::OkStatus());
  // It comes back, and is followed again.
  leaf.Relay("r")->Refuse(absl::OkStatus());
  REQUIRE(leaf.AttachedTo("r"));
  CHECK(leaf.made.at("r") == 1);
}

TEST_CASE("assigned: another assignment waits for the end of a pull") {
  Leaf leaf;
  leaf.Follow({"r"});
  REQUIRE(leaf.up->OpenPull({}).ok());
  leaf.Assign({"b"});
  CHECK(leaf.up->in_use() == "r");
  CHECK(leaf.Relay("r")->attached());
  leaf.up->NotePullEnd(absl::OkStatus());
  CHECK(leaf.up->in_use() == "b");
  REQUIRE(leaf.AttachedTo("b"));
  // One whose relay has failed it goes at once.
  leaf.Relay("b")->Tell();
  REQUIRE(leaf.up->OpenPull({}).ok());
  leaf.Relay("b")->Refuse(absl::UnavailableError("gone"));
  leaf.Relay("b")->End(absl::UnavailableError("gone"));
  leaf.Assign({"c"});
  CHECK(leaf.up->in_use() == "c");
  leaf.up->NotePullEnd(absl::UnavailableError("broken off"));
  CHECK(leaf.up->in_use() == "c");
  // Back to the sender.
  leaf.Assign({});
  REQUIRE(leaf.AttachedTo("s"));
}

TEST_CASE("assigned: other back-ups disturb nobody who follows the same relay") {
  Leaf leaf;
  leaf.Follow({"r", "b"});
  leaf.Assign({"r", "c"});
  leaf.Relay("r")->Tell();
  CHECK(leaf.Events() == 2);
  CHECK(leaf.Relay("r")->counts().attaches == 1);
  CHECK_FALSE(leaf.ended);
  // Nor does a sender that is away, or that names the one that is followed in another place.
  leaf.sender->End(absl::UnavailableError("restarted"));
  leaf.Relay("r")->Tell();
  CHECK(leaf.Events() == 3);
  REQUIRE(Eventually([&] { return leaf.sender->attached(); }));
  leaf.Assign({"c", "r"});
  CHECK(leaf.up->in_use() == "r");
  REQUIRE(leaf.AttachedTo("c"));  // after it has answered twice
}

TEST_CASE("assigned: a sync that the sender asks for goes to the replica with what it wants") {
  Leaf leaf;
  leaf.Follow({"r"});
  leaf.sender->Has(At(2));
  leaf.sender->Tell({.sync_request = 7, .assignment = Assignment{{"r"}, false}});
  leaf.Relay("r")->Tell();
  CHECK(leaf.Last().sync_request == 0);  // the relay does not have it yet
  leaf.Relay("r")->Has(At(2));
  leaf.Relay("r")->Tell();
  CHECK(leaf.Last().sync_request == 7);
  leaf.Relay("r")->Tell();
  CHECK(leaf.Last().sync_request == 0);
  // The replica forgets it with its attachment.
  leaf.up->Detach();
  REQUIRE(leaf.AttachedTo("r"));
  leaf.Relay("r")->Tell();
  CHECK(leaf.Last().sync_request == 7);
  leaf.up->Send({.committed = At(2), .sync_request = 7});
  CHECK(leaf.Reported([](const ReceiverReport& r) { return r.sync_request == 7; }));
  leaf.up->Detach();
  REQUIRE(leaf.AttachedTo("r"));
  leaf.Relay("r")->Tell();
  CHECK(leaf.Last().sync_request == 0);
}

TEST_CASE("assigned: it ends while the sender and a relay tell of much") {
  for (int i = 0; i < 20; ++i) {
    Leaf leaf;
    leaf.Attach();
    REQUIRE(Eventually([&] { return leaf.sender->attached(); }));
    leaf.Assign({"r"});
    leaf.Assign({"b"});
    leaf.up.reset();
  }
}

}  // namespace deltawire::receiver::assigned_upstream_test
