// A sender that says whom each receiver follows: real daemons of two sites, real SIGKILLs. Bytes
// are compared with the trainer's; what crossed the sender's link is what the daemons count.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "tests/support/certificates.h"
#include "tests/support/relays.h"

namespace deltawire::testing::sites_test {
namespace {

std::map<std::string, v1::ReceiverInfo> Receivers(SenderProcess& sender) {
  v1::ListReceiversRequest request;
  request.set_model(kModel);
  v1::ListReceiversResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  context.set_wait_for_ready(true);
  std::map<std::string, v1::ReceiverInfo> all;
  if (!sender.orchestrator().ListReceivers(&context, request, &response).ok()) return all;
  for (const v1::ReceiverInfo& r : response.receivers()) all[r.receiver_id()] = r;
  return all;
}

/// A receiver of a site that serves others there.
std::vector<std::string> OfSite(const std::string& site, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--site", site, "--buffers", "2"});
  return Serving(more);
}

/// A sender that assigns, and receivers of two sites.
struct Fleet {
  explicit Fleet(uint64_t seed, size_t megabytes = 8)
      : sender(root.path(), {"--fan-out", "2"}),
        trainer(sender.socket(), kModel, megabytes, seed) {}

  void Add(const std::string& id, std::vector<std::string> args) {
    receivers[id] = std::make_unique<ReceiverProcess>(root.path(), id, sender.control(), kModel,
                                                      std::move(args));
  }
  void AddSites(int of_each) {
    for (int i = 0; i < of_each; ++i) {
      for (const char* site : {"east", "west"}) Add(fmt::format("{}{}", site, i), OfSite(site));
    }
  }
  bool Follow(const std::string& id) {
    ReceiverProcess& receiver = *receivers.at(id);
    return Follows(sender, receiver) && trainer.Compare(receiver.dir()).empty();
  }
  bool AllFollow(const std::string& without = "") {
    return std::ranges::all_of(
        receivers, [&](const auto& r) { return r.first == without || Follow(r.first); });
  }
  void Step(uint64_t version) {
    trainer.Step();
    REQUIRE(trainer.Publish(version).ok());
  }
  /// Waits until `attached` receivers follow whom they are told to; returns who follows whom.
  std::map<std::string, std::string> Tree(size_t attached) {
    std::map<std::string, v1::ReceiverInfo> all;
    const bool settled = Eventually([&] {
      all = Receivers(sender);
      return all.size() == attached && std::ranges::all_of(all, [](const auto& r) {
               return r.second.follows() == r.second.assigned();
             });
    });
    std::map<std::string, std::string> follows;
    for (const auto& [id, r] : all) {
      follows[id] = r.follows();
      UNSCOPED_INFO(id << " follows " << r.follows() << ", told " << r.assigned());
    }
    REQUIRE(settled);
    return follows;
  }
  uint64_t Sent() { return sender.Status(kModel).bytes_sent(); }
  uint64_t Received(const std::string& id) { return receivers.at(id)->Status().bytes_received(); }

  ShmDir root;
  SenderProcess sender;
  Trainer trainer;
  std::map<std::string, std::unique_ptr<ReceiverProcess>> receivers;
};

std::vector<std::string> OfTheSender(const std::map<std::string, std::string>& tree) {
  std::vector<std::string> ids;
  for (const auto& [id, follows] : tree) {
    if (follows.empty()) ids.push_back(id);
  }
  return ids;
}

}  // namespace

TEST_CASE("sites: the link of each of two sites is crossed once, by whole models and by deltas") {
  Fleet fleet(201);
  REQUIRE(fleet.trainer.Publish(1).ok());
  fleet.AddSites(4);
  REQUIRE(fleet.AllFollow());
  const auto tree = fleet.Tree(8);
  const auto roots = OfTheSender(tree);
  REQUIRE(roots.size() == 2);
  CHECK(roots[0].substr(0, 4) == "east");
  CHECK(roots[1].substr(0, 4) == "west");
  std::map<std::string, int> followers;
  for (const auto& [id, follows] : tree) {
    if (follows.empty()) continue;
    CHECK(id.substr(0, 4) == follows.substr(0, 4));
    CHECK(++followers[follows] <= 2);
  }
  CHECK(fleet.Sent() == 2 * fleet.trainer.layout().total_bytes());
  for (uint64_t version = 2; version <= 5; ++version) {
    fleet.Step(version);
    REQUIRE(fleet.AllFollow());
  }
  CHECK(fleet.Sent() == fleet.Received(roots[0]) + fleet.Received(roots[1]));
  for (const auto& [id, receiver] : fleet.receivers) {
    CAPTURE(id);
    CHECK(receiver->Status().last_pull().chunks_full() == 0);
  }
  // A sender that is started again finds the tree as it was.
  fleet.sender.Restart();
  CHECK(fleet.Tree(8) == tree);
  fleet.Step(6);
  REQUIRE(fleet.AllFollow());
  CHECK(OfTheSender(fleet.Tree(8)) == roots);
}

TEST_CASE("sites: a relay is killed, all others commit the next version, and it comes back") {
  Fleet fleet(202);
  REQUIRE(fleet.trainer.Publish(1).ok());
  fleet.AddSites(4);
  REQUIRE(fleet.AllFollow());
  uint64_t version = 1;
  // The root of a site, then one in the middle of its tree.
  for (const bool root : {true, false}) {
    CAPTURE(root);
    const auto before = fleet.Tree(8);
    std::string victim = OfTheSender(before).front();
    if (!root) {
      const auto followed = std::ranges::find_if(
          before, [&](const auto& r) { return !r.second.empty() && !before.at(r.second).empty(); });
      REQUIRE(followed != before.end());
      victim = followed->second;
    }
    CAPTURE(victim);
    fleet.receivers.at(victim)->child().Kill();
    fleet.Step(++version);
    REQUIRE(fleet.AllFollow(victim));
    const auto without = fleet.Tree(7);
    CHECK(OfTheSender(without).size() == 2);
    for (const auto& [id, follows] : without) {
      if (before.at(id) != victim) CHECK(follows == before.at(id));  // nobody else has moved
    }
    const uint64_t sent = fleet.Sent();
    fleet.Step(++version);
    REQUIRE(fleet.AllFollow(victim));
    CHECK(OfTheSender(fleet.Tree(7)).size() == 2);
    uint64_t roots = 0;
    for (const std::string& id : OfTheSender(without)) {
      roots += fleet.receivers.at(id)->Status().last_pull().payload_bytes();
    }
    CHECK(fleet.Sent() - sent == roots);
    fleet.receivers.at(victim)->Start();
    REQUIRE(fleet.Follow(victim));
    const auto back = fleet.Tree(8);
    CHECK(OfTheSender(back).size() == 2);
    for (const auto& [id, follows] : without) CHECK(back.at(id) == follows);
    fleet.Step(++version);
    REQUIRE(fleet.AllFollow());
  }
}

TEST_CASE("sites: seeded SIGKILLs of anybody end in the newest version, and in one crossing") {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    Fleet fleet(seed, 4);
    REQUIRE(fleet.trainer.Publish(1).ok());
    for (int i = 0; i < 6; ++i) fleet.Add(fmt::format("west{}", i), OfSite("west"));
    for (uint64_t version = 2; version <= 8; ++version) {
      CAPTURE(version);
      fleet.trainer.Step();
      REQUIRE(fleet.trainer.Publish(version).status() == absl::OkStatus());
      const auto victim = std::next(fleet.receivers.begin(), static_cast<ptrdiff_t>(random() % 6));
      // A moment somewhere in the pulls.
      (void)Eventually([&] { return victim->second->Status().committed().version() == version; },
                       std::chrono::milliseconds(random() % 200));
      if (random() % 6 == 0) fleet.sender.Restart();
      victim->second->Restart();
    }
    REQUIRE(fleet.AllFollow());
    CHECK(OfTheSender(fleet.Tree(6)).size() == 1);
  }
}

TEST_CASE("sites: receivers of no site, alone in one, or beyond the fan-out pull from the sender") {
  Fleet fleet(203, 2);
  REQUIRE(fleet.trainer.Publish(1).ok());
  fleet.Add("plain", {});
  fleet.Add("serving", Serving());
  fleet.Add("typo", OfSite("wset"));
  fleet.Add("west0", OfSite("west"));
  REQUIRE(fleet.AllFollow());
  for (int i = 1; i <= 3; ++i) fleet.Add(fmt::format("west{}", i), {"--site", "west"});
  REQUIRE(fleet.AllFollow());
  auto tree = fleet.Tree(7);
  CHECK(OfTheSender(tree).size() == 5);  // with west0 and one that finds it full
  CHECK(tree.at("plain").empty());
  CHECK(tree.at("serving").empty());
  CHECK(tree.at("typo").empty());
  // One more that serves has a place for it.
  fleet.Add("west4", OfSite("west"));
  REQUIRE(fleet.Follow("west4"));
  REQUIRE(Eventually([&] { return OfTheSender(fleet.Tree(8)).size() == 4; }));
  fleet.Step(2);
  REQUIRE(fleet.AllFollow());
}

TEST_CASE("sites: without the sender's option, and with the relay's own, nothing is assigned") {
  ShmDir root;
  SenderProcess sender(root.path());
  Trainer trainer(sender.socket(), kModel, 2, 204);
  REQUIRE(trainer.Publish(1).ok());
  ReceiverProcess a(root.path(), "a", sender.control(), kModel, OfSite("west"));
  ReceiverProcess b(root.path(), "b", sender.control(), kModel, OfSite("west"));
  ReceiverProcess c(root.path(), "c", a.control(), kModel, OfSite("west"));  // names a relay
  for (ReceiverProcess* r : {&a, &b, &c}) {
    REQUIRE(r->WaitCommitted(1));
    CHECK(trainer.Compare(r->dir()) == "");
  }
  const auto all = Receivers(sender);
  REQUIRE(all.size() == 2);
  for (const auto& [id, r] : all) {
    CHECK(r.site() == "west");
    CHECK(r.follows().empty());
    CHECK(r.assigned().empty());
  }
  // A sender that is started with the option tells those who are there.
  sender.Restart({"--fan-out", "8"});
  REQUIRE(Eventually([&] {
    const auto now = Receivers(sender);
    return std::ranges::count_if(now, [](const auto& r) { return !r.second.follows().empty(); }) ==
           1;
  }));
  // And one without it lets them come back.
  sender.Restart({});
  REQUIRE(Eventually([&] {
    const auto now = Receivers(sender);
    return now.size() == 2 &&
           std::ranges::all_of(now, [](const auto& r) { return r.second.follows().empty(); });
  }));
}

TEST_CASE("sites: the receivers of one site share its limit, and no other has it") {
  constexpr double kRate = 8e6;
  ShmDir root;
  SenderProcess sender(root.path(), {"--rate-limit", "site:8MB"});
  Trainer trainer(sender.socket(), kModel, 16, 206);
  REQUIRE(trainer.Publish(1).ok());
  const auto bytes = static_cast<double>(trainer.layout().total_bytes());
  // Two of a site bring the model twice, and one of no site takes as long as it needs.
  const auto seconds = [&](const std::vector<std::string>& ids, const std::string& site) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::unique_ptr<ReceiverProcess>> all;
    for (const std::string& id : ids) {
      std::vector<std::string> args;
      if (!site.empty()) args = {"--site", site};
      all.push_back(
          std::make_unique<ReceiverProcess>(root.path(), id, sender.control(), kModel, args));
    }
    for (auto& receiver : all) {
      REQUIRE(receiver->WaitCommitted(1));
      CHECK(trainer.Compare(receiver->dir()) == "");
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  // Bursts of a tenth of a second pass, and no stream waits after its last piece.
  const double together = seconds({"a", "b"}, "east");
  CHECK(together > 2 * bytes / kRate * 0.8 - 0.1);
  CHECK(seconds({"c"}, "") < together / 2);
  v1::SenderStatusResponse status;
  grpc::ClientContext context;
  REQUIRE(sender.orchestrator().GetStatus(&context, {}, &status).ok());
  CHECK(status.rate_limits().per_site() == 8'000'000);
  CHECK(status.rate_limits().all() == 0);
}

TEST_CASE("sites: with TLS a relay is followed if its certificate is of the address it says") {
  ShmDir root;
  const TestAuthority authority(root.path() / "keys");
  const std::string principals = authority.Principals(
      "[[principal]]\nname = 'rollout'\nroles = ['receiver']\n"
      "certificate = ['rollout', 'rollout-b']\n"
      "[[principal]]\nname = 'operator'\nroles = ['operator']\ncertificate = 'operator'\n");
  const auto with = [&](const std::string& node) -> std::vector<std::string> {
    return {"--credentials", authority.Node(node), "--principals", principals};
  };
  const std::vector<std::string> rollout = with("rollout");
  ShowAs(authority.Node("operator"));
  std::vector<std::string> args = with("sender");
  args.insert(args.end(), {"--fan-out", "8"});
  SenderProcess sender(root.path(), args);
  Trainer trainer(sender.socket(), kModel, 2, 205);
  REQUIRE(trainer.Publish(1).ok());
  // Its certificate is of another machine than it says, so nobody can ask it anything.
  const std::vector<std::string> elsewhere = {
      "--credentials", authority.Node("rollout-b", "", {"10.255.0.1"}), "--principals", principals};
  ReceiverProcess lies(root.path(), "a-liar", sender.control(), kModel, OfSite("east", elsewhere));
  REQUIRE(Eventually([&] { return trainer.Compare(lies.dir()).empty(); }));
  ReceiverProcess doubts(root.path(), "doubts", sender.control(), kModel, OfSite("east", rollout));
  ReceiverProcess relay(root.path(), "relay", sender.control(), kModel, OfSite("west", rollout));
  REQUIRE(relay.WaitCommitted(1));
  ReceiverProcess leaf(root.path(), "leaf", sender.control(), kModel, OfSite("west", rollout));
  for (ReceiverProcess* r : {&leaf, &doubts}) {
    REQUIRE(r->WaitCommitted(1));
    CHECK(trainer.Compare(r->dir()) == "");
  }
  REQUIRE(Eventually([&] {
    const auto all = Receivers(sender);
    return all.contains("leaf") && all.at("leaf").follows() == "relay" &&
           all.at("doubts").assigned() == "a-liar" && all.at("doubts").follows().empty();
  }));
  // After a while the sender has noticed.
  REQUIRE(Eventually([&] {
    const auto all = Receivers(sender);
    return all.at("a-liar").follows() == "doubts" && !all.at("a-liar").not_handed_out().empty();
  }));
  trainer.Step();
  REQUIRE(trainer.Publish(2).ok());
  for (ReceiverProcess* r : {&leaf, &doubts, &relay, &lies}) {
    REQUIRE(Eventually([&] { return trainer.Compare(r->dir()).empty(); }));
  }
  CHECK(ReadText(doubts.log()).find("ertificate") != std::string::npos);
  ShowAs("");
}

}  // namespace deltawire::testing::sites_test
