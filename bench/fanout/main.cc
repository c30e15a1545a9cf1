// The suite `fanout`: one sender and many receivers that follow it at once, against one receiver;
// and receivers that follow relays. The receivers are real ones, with a directory each, but share
// this process and its worker threads; the relays are daemons.
#include <CLI/CLI.hpp>
#include <limits>

#include "bench/fanout/group_reports.h"
#include "bench/fanout/scene.h"
#include "bench/fanout/waits.h"
#include "bench/fanout/watches.h"
#include "common/base/log.h"
#include "common/net/pull_client.h"
#include "proto/convert.h"
#include "receiver/grpc_upstream.h"
#include "receiver/replica/replica.h"
#include "tests/support/eventually.h"

namespace deltawire::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = Cluster::kModel;
constexpr double kMostKiBPerReceiver = 256;
constexpr size_t kWaitKilobytes = 16'000;  // takes seconds over a link of 1 Mbit/s for each delta

struct Options {
  size_t kilobytes = 256;
  size_t relay_megabytes = 256;
};

void Declare(CLI::App& app, Options& options) {
  app.add_option("--kilobytes", options.kilobytes, "Size of the model")
      ->check(CLI::Range(4, 1 << 20));
  app.add_option("--relay-megabytes", options.relay_megabytes, "The same, of the cases of relays")
      ->check(CLI::Range(1, 1 << 14));
}

class Swarm {
 public:
  Swarm(const fs::path& root, const std::string& sender, size_t count, uint32_t streams = 1,
        uint32_t buffers = 1) {
    rates_.Calibrate(kernels::Best());
    const auto transport = [this](net::PullTarget target) {
      return std::make_unique<net::PullClient>(io_, std::move(target));
    };
    for (size_t i = 0; i < count; ++i) {
      receiver::ReplicaOptions o;
      o.model = kModel;
      o.directory = root / fmt::format("receiver-{}", i);
      o.streams = streams;
      o.buffers = buffers;
      o.huge_pages = false;
      o.seed = i + 1;
      std::vector<std::unique_ptr<receiver::Upstream>> upstreams;
      upstreams.push_back(
          receiver::MakeGrpcUpstream(sender, fmt::format("r{}", i), security::Credentials::None()));
      auto replica = receiver::Replica::Start(o, std::move(upstreams), transport, pool_, rates_);
      if (!replica.ok()) {
        failed_ = replica.status();
        return;
      }
      receiver::Replica* raw = replicas_.emplace_back(*std::move(replica)).get();
      raw->gate().version().OnReady(
          [this, raw] { arrivals_.Of(raw->gate().version().Ready().id.version); });
    }
  }
  ~Swarm() {
    for (const auto& replica : replicas_) replica->Stop();
    for (const auto& replica : replicas_) replica->Join();
    replicas_.clear();
    io_.Stop();
  }

  /// Publishes the next version and waits until every receiver has it.
  Status Step(const std::string& name, Scene& scene, Series& s) {
    return scene.Step(name, arrivals_, replicas_.size(), s);
  }
  /// Waits until every receiver has the first version. `name` is the case, for the error.
  Status AwaitFirst(const std::string& name) const {
    DW_RETURN_IF_ERROR(failed_);
    const auto has = [](const auto& r) { return r->status().committed.id.version == 1; };
    const auto all = [&] { return std::all_of(replicas_.begin(), replicas_.end(), has); };
    if (testing::Eventually(all, kPatience)) return absl::OkStatus();
    return Errorf(StatusCode::kDeadlineExceeded, "{}: not all receivers have the first version",
                  name);
  }

  /// Returns the seconds from the first commit of `version` to the last one, by the shared clock.
  double Spread(uint64_t version) const {
    int64_t first = std::numeric_limits<int64_t>::max(), last = 0;
    for (const auto& replica : replicas_) {
      for (const receiver::Commit& commit : replica->commits().recent()) {
        if (commit.id.id.version != version) continue;
        first = std::min(first, commit.unix_nanos);
        last = std::max(last, commit.unix_nanos);
      }
    }
    return static_cast<double>(last - first) * 1e-9;
  }

 private:
  Arrivals arrivals_;
  ThreadPool pool_;
  net::IoThreads io_;
  CoderRates rates_;
  std::vector<std::unique_ptr<receiver::Replica>> replicas_;
  Status failed_;
};

// Returns the seconds of a round trip of the control port: a call that does almost nothing.
StatusOr<double> RoundTrip(Scene& scene) {
  v1::GetNewestRequest request;
  request.set_model(kModel);
  v1::GetNewestResponse response;
  grpc::ClientContext context;
  const auto start = SteadyClock::now();
  const grpc::Status asked = scene.sender().pulls().GetNewest(&context, request, &response);
  DW_RETURN_IF_ERROR(FromGrpc(asked, "sender: GetNewest"));
  return SecondsSince(start);
}

Status Followers(const Options& options, Bench& bench, size_t count, double& one_receiver) {
  const std::string name = fmt::format("followers/{}", count);
  if (!bench.Asked(name) && count != 1) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const auto scene, Scene::Make(options.kilobytes));
  Swarm swarm(scene->root(), scene->sender().control(), count);
  DW_RETURN_IF_ERROR(swarm.AwaitFirst(name));
  DW_ASSIGN_OR_RETURN(const Series series,
                      bench.Measure([&](Series& s) { return swarm.Step(name, *scene, s); }));
  bench.Add(name, 1, series,
            {Value("publish -> all committed", "all since begin"),
             Value("trainer's publish", "trainer")});
  bench.AddRatio(name, "against one receiver", series, "all since begin", one_receiver);
  scene->AddCost(name, count, count >= 100 ? kMostKiBPerReceiver : 0, bench);
  return absl::OkStatus();
}

std::unique_ptr<testing::ReceiverProcess> MakeRelay(const fs::path& root, const std::string& id,
                                                    const std::string& upstream) {
  return std::make_unique<testing::ReceiverProcess>(
      root, id, upstream, kModel,
      std::vector<std::string>{"--buffers", "2", "--delta-files", "0", "--scrub-bytes-per-s", "0",
                               "--bulk-listen", fmt::format("127.0.0.1:{}", testing::FreePort())});
}

size_t RelayKilobytes(const Options& options, const Bench& bench) {
  return bench.quick ? 8000 : options.relay_megabytes * 1000;
}

// Measures from the trainer's last write until a receiver has committed, with `depth` - 1 relays
// between.
Status Chain(const Options& options, Bench& bench, size_t depth, double& depth_one) {
  constexpr double kMostAgainstOne = 1.5;
  const std::string name = fmt::format("chain/{}", depth);
  if (!bench.Asked(name) && depth != 1) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const auto scene,
                      Scene::Make(RelayKilobytes(options, bench), {"--scrub-bytes-per-s", "0"}));
  std::vector<std::unique_ptr<testing::ReceiverProcess>> relays;
  std::string upstream = scene->sender().control();
  for (size_t i = 1; i < depth; ++i) {
    relays.push_back(MakeRelay(scene->root(), fmt::format("relay-{}", i), upstream));
    upstream = relays.back()->control();
  }
  Swarm leaf(scene->root(), upstream, 1, 4);
  DW_RETURN_IF_ERROR(leaf.AwaitFirst(name));
  DW_ASSIGN_OR_RETURN(const Series series,
                      bench.Measure([&](Series& s) { return leaf.Step(name, *scene, s); }));
  bench.Add(name, 1, series, {Value("ready -> committed", "all since ready")});
  bench.AddRatio(name, "against depth 1", series, "all since ready", depth_one, kMostAgainstOne);
  return absl::OkStatus();
}

// Measures new receivers behind a sender that may send 1 Gbit/s in total: one receiver, and eight
// that follow one more, a relay, which alone pulls from the sender.
Status BehindOneLink(const Options& options, Bench& bench, size_t count, double& one_receiver) {
  constexpr double kMostTime = 1.3, kMostBytes = 1.05;
  const std::string name = fmt::format("uplink/{}", count);
  if (!bench.Asked(name) && count != 1) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const auto scene,
                      Scene::Make(RelayKilobytes(options, bench),
                                  {"--scrub-bytes-per-s", "0", "--rate-limit", "125MB"}));
  double most_bytes = 0;
  DW_ASSIGN_OR_RETURN(const Series series, bench.Measure([&](Series& s) -> Status {
    const fs::path root = scene->root() / "round";
    fs::create_directories(root);
    const uint64_t before = scene->status().bytes_sent();
    const auto start = SteadyClock::now();
    {
      const auto relay = count == 1 ? nullptr : MakeRelay(root, "relay", scene->sender().control());
      Swarm swarm(root, relay == nullptr ? scene->sender().control() : relay->control(), count, 4);
      DW_RETURN_IF_ERROR(swarm.AwaitFirst(name));
      s.Add("all", SecondsSince(start));
    }
    const auto sent = static_cast<double>(scene->status().bytes_sent() - before);
    most_bytes = std::max(most_bytes, sent / static_cast<double>(scene->bytes()));
    fs::remove_all(root);
    return absl::OkStatus();
  }));
  bench.Add(name, 1, series, {Value("start -> all committed", "all")});
  bench.AddValue(name, "sender's bytes", most_bytes, "models", kMostBytes);
  bench.AddRatio(name, "against one receiver", series, "all", one_receiver, kMostTime);
  return absl::OkStatus();
}

// Measures how far apart the commits of a group's members are, by the files (one machine has them
// all) and by the sender, against a round trip of the control port.
Status Group(const Options& options, Bench& bench, size_t count) {
  const std::string name = fmt::format("group/{}", count);
  if (!bench.Asked(name)) return absl::OkStatus();
  std::string members;
  for (size_t i = 0; i < count; ++i) members += fmt::format("{}r{}", i == 0 ? "" : ",", i);
  DW_ASSIGN_OR_RETURN(const auto scene,
                      Scene::Make(options.kilobytes, {"--scrub-bytes-per-s", "0", "--group-commits",
                                                      "--group", "g=" + members}));
  Swarm swarm(scene->root(), scene->sender().control(), count, 1, 2);
  DW_RETURN_IF_ERROR(swarm.AwaitFirst(name));
  DW_ASSIGN_OR_RETURN(const Series series, bench.Measure([&](Series& s) -> Status {
    DW_ASSIGN_OR_RETURN(const double round_trip, RoundTrip(*scene));
    s.Add("round trip", round_trip);
    DW_RETURN_IF_ERROR(swarm.Step(name, *scene, s));
    s.Add("spread", swarm.Spread(scene->version()));
    const auto ended = [&] {
      const v1::GroupOutcome& last = scene->status().groups(0).last();
      return last.committed() && last.target().version() == scene->version();
    };
    if (!testing::Eventually(ended, kPatience)) {
      return Errorf(StatusCode::kDeadlineExceeded, "{}: the round has not ended", name);
    }
    const v1::GroupOutcome last = scene->status().groups(0).last();
    s.Add("seen spread", last.spread_seconds());
    s.Add("prepare", last.prepare_seconds());
    s.Add("word", last.word_seconds());
    return absl::OkStatus();
  }));
  bench.Add(
      name, 1, series,
      {Value("first commit -> last", "spread"),
       Value("the same as the sender sees it", "seen spread"), Value("round trip", "round trip"),
       Value("begun -> decided", "prepare"), Value("word -> last commit", "word"),
       Value("publish -> all committed", "all since begin")});
  return absl::OkStatus();
}

Status Run(const Options& options, Bench& bench) {
  DW_RETURN_IF_ERROR(InitLogging("bench_fanout", "error"));  // a line for each commit is too much
  double one_receiver = 0;
  for (const size_t count : {1, 10, 100, 1000}) {
    if (bench.quick && count > 10) break;
    DW_RETURN_IF_ERROR(Followers(options, bench, count, one_receiver));
  }
  DW_RETURN_IF_ERROR(Group(options, bench, 8));
  for (const size_t count : {16, 4096}) DW_RETURN_IF_ERROR(GroupReports(bench, count));
  double depth_one = 0, one_alone = 0;
  for (const size_t depth : {1, 4}) {
    DW_RETURN_IF_ERROR(Chain(options, bench, depth, depth_one));
  }
  for (const size_t count : {1, 8}) {
    DW_RETURN_IF_ERROR(BehindOneLink(options, bench, count, one_alone));
  }
  DW_RETURN_IF_ERROR(Watches(bench, options.kilobytes));
  return TrainerWaits(bench, bench.quick ? 1000 : kWaitKilobytes);
}

}  // namespace
}  // namespace deltawire::bench

int main(int argc, char** argv) {
  using namespace deltawire::bench;
  return SuiteMain("fanout",
                   "Many receivers that follow one sender, also by relays, against one receiver.",
                   Declare, Run, argc, argv);
}
