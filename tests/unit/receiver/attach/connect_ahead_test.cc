// Whom a pull's streams are connected to before it is granted, when the upstream is another one
// than for the pull before.
#include <algorithm>
#include <catch2/catch.hpp>
#include <mutex>

#include "receiver/attach/failover_upstream.h"
#include "receiver/replica/replica.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/receiver/attach/fake_upstream.h"

namespace deltawire::receiver::connect_ahead_test {
namespace {

using testing::Eventually;
using Notes = std::vector<std::string>;

/// What transports were told, in order.
class Notebook {
 public:
  void Add(std::string note) {
    std::lock_guard lock(mu_);
    notes_.push_back(std::move(note));
  }
  Notes Take() {
    std::lock_guard lock(mu_);
    return std::exchange(notes_, {});
  }

 private:
  std::mutex mu_;
  Notes notes_;
};

/// Notes whom it connects to before the ticket is there, and whom it pulls from.
class Noting : public net::PullTransport {
 public:
  Noting(net::PullTarget target, TransportFactory make, Notebook& notes)
      : target_(std::move(target)), make_(std::move(make)), notes_(notes) {}
  void Connect() override { notes_.Add("ahead to " + target_.host); }
  void SetTicket(const wire::Ticket& ticket) override { target_.ticket = ticket; }
  StatusOr<net::PullEnd> Run(const wire::Have& have, net::ChunkSink& sink) override {
    notes_.Add("pull from " + target_.host);
    return make_(target_)->Run(have, sink);
  }
  void Cancel() override {}

 private:
  net::PullTarget target_;
  const TransportFactory make_;
  Notebook& notes_;
};

}  // namespace

TEST_CASE("connect ahead: streams go to whom the last grant named, and to nobody after a change") {
  constexpr Hash128 kLineage{11, 12};
  const Layout layout = FakeLayout();
  FakeAgent a("a", kLineage, layout), b("b", kLineage, layout);
  FakeAgent::Chunks chunks = FakeAgent::Make(layout, 1);
  const auto publish = [&](uint64_t version) {
    chunks = FakeAgent::Step(chunks, version);
    // The one in use last, so that the other has what the receiver may go there for.
    b.Publish({1, version}, chunks);
    a.Publish({1, version}, chunks);
  };
  publish(1);
  Notebook notes;
  const TransportFactory transports = FakeAgent::Transports({&a, &b});
  TempDir dir;
  ThreadPool pool(1);
  CoderRates rates;
  ReplicaOptions options;
  options.model = "m";
  options.directory = dir.path();
  options.huge_pages = false;
  options.connect_ahead = true;
  std::vector<std::unique_ptr<Upstream>> alternatives;
  alternatives.push_back(a.MakeUpstream());
  alternatives.push_back(b.MakeUpstream());
  UpstreamChoice::Times times;  // one that was left stays so
  times.settle = times.first_doubt = times.longest_doubt = std::chrono::hours(1);
  std::vector<std::unique_ptr<Upstream>> upstreams;
  upstreams.push_back(MakeFailoverUpstream(std::move(alternatives), 1, 0, times));
  auto replica = Replica::Start(
      options, std::move(upstreams),
      [&](net::PullTarget target) {
        return std::make_unique<Noting>(std::move(target), transports, notes);
      },
      pool, rates);
  REQUIRE(replica.ok());
  const auto reaches = [&](uint64_t version) {
    return Eventually([&] { return (*replica)->status().committed.id.version == version; });
  };
  REQUIRE(reaches(1));
  CHECK(notes.Take() == Notes{"pull from a"});
  publish(2);
  REQUIRE(reaches(2));
  CHECK(notes.Take() == Notes{"ahead to a", "pull from a"});
  a.Set([](FakeAgent::Faults& f) { f.fail_opens = 1; });
  publish(3);
  REQUIRE(reaches(3));
  CHECK(notes.Take() == Notes{"ahead to a", "pull from b"});
  publish(4);
  REQUIRE(reaches(4));
  CHECK(notes.Take() == Notes{"ahead to b", "pull from b"});
  (*replica)->Stop();
}

}  // namespace deltawire::receiver::connect_ahead_test
