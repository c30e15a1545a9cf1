// bench_fanout: one sender and many receivers that follow it at once, against one receiver; and
// receivers that follow relays. The receivers are real ones, with a directory each, but share this
// process and its worker threads; the relays are daemons.
#include <CLI/CLI.hpp>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <random>
#include <thread>

#include "bench/harness/bench.h"
#include "bench/harness/buffers.h"
#include "common/base/log.h"
#include "common/net/pull_client.h"
#include "kernels/kernels.h"
#include "receiver/grpc_upstream.h"
#include "receiver/replica.h"
#include "sender/export/client/trainer_client.h"
#include "tests/support/daemons.h"

namespace deltawire::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = "fanout";
constexpr std::chrono::seconds kPatience{300};
constexpr double kMostKiBPerReceiver = 256;

struct Options {
  size_t kilobytes = 256;
  size_t relay_megabytes = 256;
};

void Declare(CLI::App& app, Options& options) {
  app.add_option("--kilobytes", options.kilobytes, "Size of the model")
      ->check(CLI::Range(4, 1 << 20))
      ->capture_default_str();
  app.add_option("--relay-megabytes", options.relay_megabytes, "The same, of the cases of relays")
      ->check(CLI::Range(1, 1 << 14))
      ->capture_default_str();
}

size_t ThreadsOf(pid_t pid) {
  const fs::directory_iterator tasks(fmt::format("/proc/{}/task", pid));
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

// Waits for the moment at which the last of many receivers has committed a version.
class Arrivals {
 public:
  void Expect(uint64_t version, size_t receivers) {
    std::lock_guard lock(mu_);
    version_ = version;
    missing_ = receivers;
  }
  void Committed(uint64_t version) {
    std::lock_guard lock(mu_);
    if (version != version_ || missing_ == 0) return;
    if (--missing_ == 0) cv_.notify_all();
  }
  bool Wait() {
    std::unique_lock lock(mu_);
    return cv_.wait_for(lock, kPatience, [this] { return missing_ == 0; });
  }

 private:
  std::mutex mu_;
  std::condition_variable cv_;
  uint64_t version_ = 0;
  size_t missing_ = 0;
};

// Receivers that follow one sender.
class Swarm {
 public:
  Swarm(const fs::path& root, const std::string& sender, size_t count, uint32_t streams = 1) {
    rates_.Calibrate(kernels::Best());
    const auto transport = [this](net::PullTarget target) {
      return std::make_unique<net::PullClient>(io_, std::move(target));
    };
    for (size_t i = 0; i < count; ++i) {
      receiver::ReplicaOptions o;
      o.model = kModel;
      o.directory = root / fmt::format("receiver-{}", i);
      o.streams = streams;
      o.buffers = 1;
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
      raw->OnReady([this, raw] { arrivals.Committed(raw->Ready().id.version); });
    }
  }
  ~Swarm() {
    for (const auto& replica : replicas_) replica->Stop();
    for (const auto& replica : replicas_) replica->Join();
    replicas_.clear();
    io_.Stop();
  }

  size_t size() const { return replicas_.size(); }
  /// Waits until every receiver has the first version, in a case's name.
  Status AwaitFirst(const std::string& name) const {
    DW_RETURN_IF_ERROR(failed_);
    const auto has = [](const auto& r) { return r->status().committed.id.version == 1; };
    const auto all = [&] { return std::all_of(replicas_.begin(), replicas_.end(), has); };
    if (testing::Eventually(all, kPatience)) return absl::OkStatus();
    return Errorf(StatusCode::kDeadlineExceeded, "{}: not all have the first version", name);
  }

  Arrivals arrivals;

 private:
  ThreadPool pool_;
  net::IoThreads io_;
  CoderRates rates_;
  std::vector<std::unique_ptr<receiver::Replica>> replicas_;
  Status failed_;
};

// A small model whose trainer changes one element in a hundred.
class SmallModel {
 public:
  SmallModel(const std::string& socket, size_t kilobytes)
      : layout_(*Layout::Create({{"w", DType::kBF16, {kilobytes * 512}}})),
        content_(layout_.total_bytes()),
        client_(socket, kModel, 0, 1, kPatience) {
    std::mt19937_64 random(1);
    for (size_t i = 0; i + 8 <= content_.size(); i += 8) StoreLe<uint64_t>(&content_[i], random());
  }
  uint64_t bytes() const { return layout_.total_bytes(); }
  Status Register() { return client_.Register(layout_, {}).status(); }
  /// `ready` gets the moment at which all was written.
  Status Publish(uint64_t version, SteadyClock::time_point& ready) {
    for (size_t i = 0; i < content_.size(); i += 200) content_[i] ^= std::byte{1};
    DW_ASSIGN_OR_RETURN(const auto offload, client_.Begin(version));
    DW_RETURN_IF_ERROR(offload->Write(0, content_));
    ready = SteadyClock::now();
    DW_RETURN_IF_ERROR(offload->Ready());
    return client_.WaitPublished(version).status();
  }

 private:
  const Layout layout_;
  std::vector<std::byte> content_;
  TrainerClient client_;
};

// A sender, and the trainer of its model.
struct Scenario {
  Scenario(const fs::path& root, size_t kilobytes, std::vector<std::string> sender_options = {})
      : sender(root, std::move(sender_options)), model(sender.socket(), kilobytes) {}

  /// Publishes the first version.
  Status Start() {
    DW_RETURN_IF_ERROR(model.Register());
    return model.Publish(version, ready);
  }
  /// Publishes the next version and waits until all of `swarm` have it. Adds the seconds of the
  /// publish, and until all have it from its beginning and from the trainer's last write.
  Status Step(const std::string& name, Swarm& swarm, Series& s) {
    swarm.arrivals.Expect(++version, swarm.size());
    const auto start = SteadyClock::now();
    DW_RETURN_IF_ERROR(model.Publish(version, ready));
    s.Add("trainer", SecondsSince(start));
    if (!swarm.arrivals.Wait()) {
      return Errorf(StatusCode::kDeadlineExceeded, "{}: version {} has not arrived", name, version);
    }
    s.Add("all since begin", SecondsSince(start));
    s.Add("all since ready", SecondsSince(ready));
    return absl::OkStatus();
  }

  testing::SenderProcess sender;
  SmallModel model;
  uint64_t version = 1;
  SteadyClock::time_point ready;
};

Status Followers(const Options& options, Bench& bench, size_t count, double& one_receiver) {
  const std::string name = fmt::format("followers/{}", count);
  if (!bench.Asked(name) && count != 1) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const auto scratch, ScratchDir::Create());
  Scenario scene(scratch->path(), options.kilobytes);
  DW_RETURN_IF_ERROR(scene.Start());
  const pid_t pid = scene.sender.child().pid();
  const size_t threads_before = ThreadsOf(pid);
  const uint64_t memory_before = testing::AnonymousBytes(pid);

  Swarm swarm(scratch->path(), scene.sender.control(), count);
  DW_RETURN_IF_ERROR(swarm.AwaitFirst(name));
  DW_ASSIGN_OR_RETURN(const Series series,
                      bench.Measure([&](Series& s) { return scene.Step(name, swarm, s); }));
  bench.Add(name, 1, series,
            {Value("publish -> all committed", "all since begin"),
             Value("trainer's publish", "trainer")});
  bench.AddRatio(name, "against one receiver", series, "all since begin", one_receiver);
  const double added =
      static_cast<double>(testing::AnonymousBytes(pid)) - static_cast<double>(memory_before);
  bench.AddValue(name, "sender's threads", static_cast<double>(ThreadsOf(pid)), "", 0,
                 fmt::format("{} before", threads_before));
  bench.AddValue(name, "sender's memory each", added / 1024 / static_cast<double>(count), "KiB",
                 count >= 100 ? kMostKiBPerReceiver : 0);
  return absl::OkStatus();
}

// A receiver that serves others, and its ports.
std::unique_ptr<testing::ReceiverProcess> MakeRelay(const fs::path& root, const std::string& id,
                                                    const std::string& upstream) {
  return std::make_unique<testing::ReceiverProcess>(
      root, id, upstream, kModel,
      std::vector<std::string>{"--serve", "--buffers", "2", "--delta-files", "0",
                               "--scrub-bytes-per-s", "0", "--bulk-listen",
                               fmt::format("127.0.0.1:{}", testing::FreePort())});
}

size_t RelayKilobytes(const Options& options, const Bench& bench) {
  return bench.quick ? 8000 : options.relay_megabytes * 1000;
}

// From the trainer's last write until a receiver has committed, with `depth` - 1 relays between.
Status Chain(const Options& options, Bench& bench, size_t depth, double& depth_one) {
  constexpr double kMostAgainstOne = 1.5;
  const std::string name = fmt::format("chain/{}", depth);
  if (!bench.Asked(name) && depth != 1) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const auto scratch, ScratchDir::Create());
  Scenario scene(scratch->path(), RelayKilobytes(options, bench), {"--scrub-bytes-per-s", "0"});
  DW_RETURN_IF_ERROR(scene.Start());
  std::vector<std::unique_ptr<testing::ReceiverProcess>> relays;
  std::string upstream = scene.sender.control();
  for (size_t i = 1; i < depth; ++i) {
    relays.push_back(MakeRelay(scratch->path(), fmt::format("relay-{}", i), upstream));
    upstream = relays.back()->control();
  }
  Swarm leaf(scratch->path(), upstream, 1, 4);
  DW_RETURN_IF_ERROR(leaf.AwaitFirst(name));
  DW_ASSIGN_OR_RETURN(const Series series,
                      bench.Measure([&](Series& s) { return scene.Step(name, leaf, s); }));
  bench.Add(name, 1, series, {Value("ready -> committed", "all since ready")});
  bench.AddRatio(name, "against depth 1", series, "all since ready", depth_one, kMostAgainstOne);
  return absl::OkStatus();
}

// New receivers behind a sender that may send 1 Gbit/s in all: one of them, and eight of which one
// more, a relay, is the only one that pulls from the sender.
Status BehindOneLink(const Options& options, Bench& bench, size_t count, double& one_receiver) {
  constexpr double kMostTime = 1.3, kMostBytes = 1.05;
  const std::string name = fmt::format("uplink/{}", count);
  if (!bench.Asked(name) && count != 1) return absl::OkStatus();
  DW_ASSIGN_OR_RETURN(const auto scratch, ScratchDir::Create());
  Scenario scene(scratch->path(), RelayKilobytes(options, bench),
                 {"--scrub-bytes-per-s", "0", "--rate-limit", "125MB"});
  DW_RETURN_IF_ERROR(scene.Start());
  double most_bytes = 0;
  DW_ASSIGN_OR_RETURN(const Series series, bench.Measure([&](Series& s) -> Status {
    const fs::path root = scratch->path() / "round";
    fs::create_directories(root);
    const uint64_t before = scene.sender.Status(kModel).bytes_sent();
    const auto start = SteadyClock::now();
    {
      const auto relay = count == 1 ? nullptr : MakeRelay(root, "relay", scene.sender.control());
      Swarm swarm(root, relay == nullptr ? scene.sender.control() : relay->control(), count, 4);
      DW_RETURN_IF_ERROR(swarm.AwaitFirst(name));
      s.Add("all", SecondsSince(start));
    }
    const auto sent = static_cast<double>(scene.sender.Status(kModel).bytes_sent() - before);
    most_bytes = std::max(most_bytes, sent / static_cast<double>(scene.model.bytes()));
    fs::remove_all(root);
    return absl::OkStatus();
  }));
  bench.Add(name, 1, series, {Value("start -> all committed", "all")});
  bench.AddValue(name, "sender's bytes", most_bytes, "models", kMostBytes);
  bench.AddRatio(name, "against one receiver", series, "all", one_receiver, kMostTime);
  return absl::OkStatus();
}

Status Run(const Options& options, Bench& bench) {
  DW_RETURN_IF_ERROR(InitLogging("bench_fanout", "error"));  // a line for each commit is too many
  double one_receiver = 0;
  for (const size_t count : {1, 10, 100, 1000}) {
    if (bench.quick && count > 10) break;
    DW_RETURN_IF_ERROR(Followers(options, bench, count, one_receiver));
  }
  double depth_one = 0, one_alone = 0;
  for (const size_t depth : {1, 4}) {
    DW_RETURN_IF_ERROR(Chain(options, bench, depth, depth_one));
  }
  for (const size_t count : {1, 8}) {
    DW_RETURN_IF_ERROR(BehindOneLink(options, bench, count, one_alone));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltawire::bench

int main(int argc, char** argv) {
  using namespace deltawire::bench;
  return SuiteMain(
      {"fanout", "Many receivers that follow one sender, also by relays, against one receiver."},
      Declare, Run, argc, argv);
}
