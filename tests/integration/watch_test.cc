// Watches of orchestrators: hundreds of them hold no thread, their callers come and go, have
// limits, and a daemon that stops ends them.
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <deque>
#include <random>

#include "tests/support/certificates.h"
#include "tests/support/daemons.h"
#include "tests/support/version_watch.h"

namespace deltawire::testing::watch_test {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;

constexpr size_t kMost = 512;  // watches of one caller

std::unique_ptr<v1::SenderService::Stub> ConnectTo(const std::string& control) {
  return v1::SenderService::NewStub(Channel(control));
}

struct Watch : VersionWatch {
  explicit Watch(v1::SenderService::Stub& stub) : VersionWatch(stub, "m") {}
  bool Reaches(uint64_t wanted) {
    return Eventually([&] { return version() == wanted; });
  }
  /// Waits until the call has ended; returns how.
  grpc::Status End() {
    REQUIRE(Eventually([&] { return ended().has_value(); }));
    return *ended();
  }
};

struct Scene {
  Scene() : sender(root.path()), trainer(sender.socket(), "m", 1, 1) { Publish(1); }
  void Publish(uint64_t version) {
    trainer.Step();
    REQUIRE(trainer.Publish(version).ok());
  }
  ShmDir root;
  SenderProcess sender;
  Trainer trainer;
};

}  // namespace

TEST_CASE("watches: hundreds of them hold no thread, and each gets to the newest version") {
  Scene s;
  const auto stub = ConnectTo(s.sender.control());
  Watch first(*stub);
  REQUIRE(first.Reaches(1));
  const size_t before = ThreadsOf(s.sender.child().pid());
  std::deque<Watch> watches;
  for (int i = 0; i < 400; ++i) watches.emplace_back(*stub);
  for (Watch& watch : watches) REQUIRE(watch.Reaches(1));
  // gRPC's own threads may be more or fewer by a few, whatever there is to do.
  CHECK(ThreadsOf(s.sender.child().pid()) < before + 50);
  for (uint64_t version = 2; version <= 5; ++version) s.Publish(version);
  for (Watch& watch : watches) CHECK(watch.Reaches(5));
  CHECK(ThreadsOf(s.sender.child().pid()) < before + 50);
}

TEST_CASE("watches: callers come, go and are cancelled while versions are published") {
  Scene s;
  const uint64_t seed = 41;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  constexpr uint64_t kLast = 40;
  std::deque<std::unique_ptr<Watch>> watches;
  const auto stub = ConnectTo(s.sender.control());
  for (uint64_t version = 2; version <= kLast; ++version) {
    for (int i = 0; i < 8; ++i) {
      if (random() % 2 == 0 || watches.empty()) {
        watches.push_back(std::make_unique<Watch>(*stub));
      } else if (random() % 2 == 0) {
        watches.pop_front();  // cancels, and waits for the end
      } else {
        watches[random() % watches.size()]->Cancel();
      }
    }
    s.Publish(version);
  }
  for (auto& watch : watches) {
    CHECK(Eventually([&] { return watch->ended().has_value() || watch->version() == kLast; }));
    if (const auto ended = watch->ended()) {
      CHECK(ended->error_code() == grpc::StatusCode::CANCELLED);
    }
  }
}

TEST_CASE("watches: one caller has a limit, which is named, and one that ends makes place") {
  Scene s;
  // gRPC keeps calls back beyond so many of one connection, so there are several.
  std::vector<std::unique_ptr<v1::SenderService::Stub>> stubs;
  for (int i = 0; i < 2; ++i) stubs.push_back(ConnectTo(s.sender.control()));
  std::deque<Watch> watches;
  for (size_t i = 0; i < kMost; ++i) watches.emplace_back(*stubs[i % 2]);
  for (Watch& watch : watches) REQUIRE(watch.Reaches(1));
  Watch beyond(*stubs[0]);
  const grpc::Status refused = beyond.End();
  CHECK(refused.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK_THAT(refused.error_message(), Contains("has 512 watches open, which is the most"));
  // Log lines are written by a thread of their own.
  CHECK(Eventually(
      [&] { return ReadText(s.sender.log()).find("a call was refused") != std::string::npos; }));
  watches.pop_back();
  CHECK(Eventually([&] {
    Watch again(*stubs[1]);
    return Eventually([&] { return again.ended().has_value() || again.version() == 1; }) &&
           again.version() == 1;
  }));
}

TEST_CASE("watches: the limit is a principal's, whatever its connections, and no other's") {
  ShmDir root;
  const TestAuthority authority(root.path() / "keys");
  const std::string principals = authority.Principals(
      "[[principal]]\nname = 'one'\nroles = ['observer']\ncertificate = 'one'\n"
      "[[principal]]\nname = 'two'\nroles = ['observer']\ncertificate = 'two'\n"
      "[[principal]]\nname = 'none'\nroles = ['observer']\nmodels = ['x']\n"
      "certificate = 'none'\n");
  SenderProcess sender(root.path(),
                       {"--credentials", authority.Node("sender"), "--principals", principals});
  Trainer trainer(sender.socket(), "m", 1, 2);
  REQUIRE(trainer.Publish(1).ok());
  const auto as = [&](const std::string& node) {
    ShowAs(authority.Node(node));
    auto stub = ConnectTo(sender.control());
    ShowAs("");
    return stub;
  };
  const auto first = as("one"), second = as("one"), other = as("two"), stranger = as("none");
  std::deque<Watch> watches;
  for (size_t i = 0; i < kMost; ++i) watches.emplace_back(i % 2 == 0 ? *first : *second);
  for (Watch& watch : watches) REQUIRE(watch.Reaches(1));
  Watch beyond(*second);
  const grpc::Status refused = beyond.End();
  CHECK(refused.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK_THAT(refused.error_message(), Contains("one has 512 watches open"));
  Watch of_other(*other);
  CHECK(of_other.Reaches(1));
  // The gate stands in front of watches as of other calls.
  Watch of_stranger(*stranger);
  CHECK(of_stranger.End().error_code() == grpc::StatusCode::PERMISSION_DENIED);
}

TEST_CASE("watches: a sender and a receiver that stop end them, and say so") {
  Scene s;
  ReceiverProcess receiver(s.root.path(), "r", s.sender.control(), "m");
  REQUIRE(receiver.WaitCommitted(1));
  grpc::ClientContext context;
  v1::WatchReceiverVersionsRequest request;
  request.set_model("m");
  const auto commits = receiver.stub().WatchVersions(&context, request);
  v1::CommitInfo commit;
  REQUIRE(commits->Read(&commit));
  CHECK(commit.id().version() == 1);
  s.Publish(2);
  REQUIRE(commits->Read(&commit));
  CHECK(commit.id().version() == 2);
  receiver.child().Signal(SIGTERM);
  CHECK_FALSE(commits->Read(&commit));
  const grpc::Status end = commits->Finish();
  CHECK(end.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK_THAT(end.error_message(), Contains("the receiver is stopping"));

  const auto stub = ConnectTo(s.sender.control());
  std::deque<Watch> watches;
  for (int i = 0; i < 50; ++i) watches.emplace_back(*stub);
  for (Watch& watch : watches) REQUIRE(watch.Reaches(2));
  const auto begin = std::chrono::steady_clock::now();
  s.sender.child().Signal(SIGTERM);
  for (Watch& watch : watches) CHECK(watch.End().error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(std::chrono::steady_clock::now() - begin < 10s);
}

}  // namespace deltawire::testing::watch_test
