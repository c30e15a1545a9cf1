// A replica between its upstreams and those that it serves: whose failures move it to another
// upstream, and what it passes on. Everything is in memory; no sockets.
#include <catch2/catch.hpp>
#include <fstream>
#include <mutex>
#include <set>

#include "receiver/attach/failover_upstream.h"
#include "receiver/buffer/buffer_names.h"
#include "receiver/replica/replica.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/receiver/attach/fake_upstream.h"

namespace deltawire::receiver::replica_relay_test {
namespace {

using std::chrono::milliseconds;
using testing::Eventually;
constexpr Hash128 kLineage{11, 12};

struct Setup {
  Setup() { all.push_back(std::make_unique<FakeAgent>("s0", kLineage, FakeLayout())); }
  FakeAgent& agent(size_t i = 0) { return *all[i]; }
  /// `alternatives`: all agents are one sender's addresses, else only the first is used.
  void Start(ReplicaOptions options = {}, bool alternatives = false) {
    options.model = "m";
    options.directory = dir.path();
    options.huge_pages = false;
    std::vector<std::unique_ptr<Upstream>> each, one;
    std::vector<FakeAgent*> agents;
    for (const auto& a : all) {
      each.push_back(a->MakeUpstream());
      agents.push_back(a.get());
    }
    one.push_back(alternatives ? MakeFailoverUpstream(std::move(each), 1)
                               : std::move(each.front()));
    auto started =
        Replica::Start(options, std::move(one), FakeAgent::Transports(agents), pool, rates);
    REQUIRE(started.status() == absl::OkStatus());
    replica = std::move(*started);
  }
  bool Reaches(const Identity& id) {
    return Eventually([&] { return replica->status().committed == id; });
  }

  TempDir dir;
  ThreadPool pool{2};
  CoderRates rates;
  std::vector<std::unique_ptr<FakeAgent>> all;
  std::unique_ptr<Replica> replica;
};

/// Takes nothing at first, and remembers what it is told.
struct SlowDownstream : Downstream {
  bool ServeCommitted(const Buffer& buffer, std::shared_ptr<ServedFile>,
                      std::shared_ptr<const Delta>, const Identity&) override {
    std::lock_guard lock(mu);
    told.push_back(buffer.committed());
    return told.size() > 1;
  }
  void ReportNews(const RelayNews& news) override {
    std::lock_guard lock(mu);
    if (!news.fetching.empty()) fetched = news.fetching;
  }
  bool ServeIncoming(const Buffer&, std::shared_ptr<IncomingVersion>) override { return false; }
  void EndIncoming() override {}
  void DiscardModel() override {}
  void MakeWay(ServedFile&) override {}
  void RecheckChunks(std::span<const uint32_t> chunks) override {
    std::lock_guard lock(mu);
    distrusted.insert(chunks.begin(), chunks.end());
  }

  std::mutex mu;
  std::set<uint32_t> distrusted;
  std::vector<Identity> told;
  Identity fetched;
};

/// Records what it is told of versions, in order.
struct OrderedDownstream : SlowDownstream {
  bool ServeCommitted(const Buffer&, std::shared_ptr<ServedFile>, std::shared_ptr<const Delta>,
                      const Identity&) override {
    Add("committed");
    return true;
  }
  bool ServeIncoming(const Buffer&, std::shared_ptr<IncomingVersion>) override {
    Add("comes");
    return false;
  }
  void EndIncoming() override { Add("gone"); }
  void Add(const std::string& what) {
    std::lock_guard lock(mu);
    order.push_back(what);
  }
  std::vector<std::string> First(size_t count) {
    std::lock_guard lock(mu);
    return {order.begin(),
            order.begin() + static_cast<std::ptrdiff_t>(std::min(count, order.size()))};
  }

  std::vector<std::string> order;
};

}  // namespace

TEST_CASE("a version that another lineage has overtaken is gone before the new one is served") {
  const bool another = GENERATE(true, false);
  CAPTURE(another);
  OrderedDownstream downstream;  // outlives the replica
  Setup s;
  s.agent().Publish({1, 7}, FakeAgent::Make(s.agent().layout(), 1));
  Identity target = s.agent().identity();
  target.id.version = 1;
  if (another) target.lineage = {21, 22};
  s.agent().Set([&](FakeAgent::Faults& f) { f.claims = target; });
  s.Start({.downstream = &downstream});
  REQUIRE(Eventually([&] { return downstream.First(3).size() == 3; }));
  CHECK(downstream.First(3) == (another ? std::vector<std::string>{"comes", "gone", "committed"}
                                        : std::vector<std::string>{"comes", "committed", "gone"}));
}

TEST_CASE("a sender that tells of more than its pulls bring is not pulled from without a pause") {
  Setup s;
  s.agent().Publish({1, 4}, FakeAgent::Make(s.agent().layout(), 1));
  Identity later = s.agent().identity();
  later.id.version = 5;
  s.agent().Set([&](FakeAgent::Faults& f) { f.claims = later; });
  s.Start();
  REQUIRE(s.Reaches(s.agent().identity()));
  const int opens = s.agent().counts().opens;
  const auto start = SteadyClock::now();
  REQUIRE(Eventually([&] { return s.agent().counts().opens >= opens + 6; }));
  // Five pauses that double from 50 ms, of each at least half.
  CHECK(SteadyClock::now() - start >= milliseconds(25 + 50 + 100 + 200 + 400));
}

TEST_CASE("what fails at the receiver itself does not send it to its next upstream") {
  Setup s;
  s.all.push_back(std::make_unique<FakeAgent>("s1", kLineage, s.agent().layout()));
  const auto chunks = FakeAgent::Make(s.agent().layout(), 1);
  for (const auto& a : s.all) a->Publish({1, 1}, chunks);
  // The commit fails: somebody's directory has the name of a side file.
  const auto in_the_way = s.dir.path() / "config.json" / "of-somebody";
  std::filesystem::create_directories(in_the_way);
  std::ofstream(s.dir.path() / kState) << "";  // an earlier run's, so that the directory is ours
  s.Start({}, true);
  REQUIRE(Eventually([&] { return s.replica->status().pull_failures >= 3; }));
  CHECK(s.agent(1).counts().attaches == 0);
  CHECK(s.replica->status().agents[0].address == "s0,s1");
  CHECK(s.replica->status().agents[0].in_use == "s0");
  std::filesystem::remove_all(s.dir.path() / "config.json");
  REQUIRE(s.Reaches(s.agent().identity()));
  CHECK(s.agent(1).counts().attaches == 0);
}

TEST_CASE("a version that could not be served on is offered again soon and its pull was told of") {
  SlowDownstream downstream;
  Setup s;
  s.agent().Publish({1, 1}, FakeAgent::Make(s.agent().layout(), 1));
  s.Start({.downstream = &downstream});
  REQUIRE(Eventually([&] {
    std::lock_guard lock(downstream.mu);
    return downstream.told.size() >= 2;
  }));
  std::lock_guard lock(downstream.mu);
  CHECK(downstream.told == std::vector<Identity>(2, s.agent().identity()));
  CHECK(downstream.fetched == s.agent().identity());
}

TEST_CASE("chunks that somebody wrote to are not served while they are fetched anew") {
  SlowDownstream downstream;
  Setup s;
  s.agent().Publish({1, 1}, FakeAgent::Make(s.agent().layout(), 1));
  s.Start({.downstream = &downstream});
  REQUIRE(s.Reaches(s.agent().identity()));
  {
    std::fstream file(s.dir.path() / "model.safetensors",
                      std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }
  REQUIRE(Eventually([&] {
    std::lock_guard lock(downstream.mu);
    return !downstream.distrusted.empty();
  }));
  std::lock_guard lock(downstream.mu);
  CHECK(downstream.distrusted == std::set<uint32_t>{5});
}

}  // namespace deltawire::receiver::replica_relay_test
