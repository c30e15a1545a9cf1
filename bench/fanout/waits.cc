#include "bench/fanout/waits.h"

#include <signal.h>

#include <algorithm>
#include <span>

#include "bench/fanout/scene.h"
#include "tests/support/eventually.h"
#include "tests/support/proxy.h"

namespace deltawire::bench {
namespace {

using std::chrono::milliseconds;

constexpr size_t kPublishes = 200, kDensePublishes = 40;
constexpr milliseconds kStepTime{20};  // of the trainer, between two publishes
constexpr uint64_t kSlowBytesPerS = 125'000;

struct Scenario {
  const char* name;
  size_t receivers;
  bool stopped = false;  ///< by SIGSTOP, once it has the first version
  bool slow = false;     ///< behind a link of 1 Mbit/s, and so always in a pull
};
constexpr Scenario kScenarios[] = {
    {"none", 0}, {"8", 8}, {"stopped", 1, true}, {"slow", 1, false, true}};
// Versions that change everything, and a log too small for any of them.
constexpr Scenario kDenseScenarios[] = {{"dense_none", 0}, {"dense_slow", 1, false, true}};

class Followed {
 public:
  Followed(const Scenario& scenario, const std::filesystem::path& root, const ModelSource& source,
           ThreadPool& pool)
      : root_(root / scenario.name),
        scenario_(scenario),
        cluster_(root_, source, Options(scenario), pool) {}
  ~Followed() {
    if (scenario_.stopped) Signal(SIGCONT);
  }

  Status Begin(Bytes content) {
    DW_RETURN_IF_ERROR(cluster_.Begin(content));
    if (scenario_.slow) {
      proxy_ = std::make_unique<testing::Proxy>(cluster_.sender().bulk_port());
      proxy_->set_rate(kSlowBytesPerS);
    }
    for (size_t i = 0; i < scenario_.receivers; ++i) {
      receivers_.push_back(std::make_unique<testing::ReceiverProcess>(
          root_, fmt::format("r{}", i), cluster_.sender().control(), Cluster::kModel));
    }
    // The slow one need not have a version, but must be pulling it.
    const auto begun = [&](const auto& receiver) {
      const auto status = receiver->Status();
      return status.committed().version() == 1 || (scenario_.slow && status.phase() == "pulling");
    };
    for (const auto& receiver : receivers_) {
      if (testing::Eventually([&] { return begun(receiver); }, kPatience)) continue;
      return Errorf(StatusCode::kDeadlineExceeded, "wait/{}: a receiver has not started: {}",
                    scenario_.name, testing::ReadText(receiver->log()));
    }
    if (scenario_.stopped) Signal(SIGSTOP);
    return absl::OkStatus();
  }
  /// Adds the seconds that BeginOffload waited, and those of the whole publish.
  Status Step(Bytes content, Series& series) {
    DW_ASSIGN_OR_RETURN(const Publication publication, cluster_.Publish(content));
    series.Add(Waited(), publication.info.trainer_wait_seconds);
    series.Add(Took(), publication.seconds);
    series.Add(Published(), publication.info.publish_seconds);
    return absl::OkStatus();
  }
  std::string Waited() const { return fmt::format("{} waited", scenario_.name); }
  std::string Took() const { return fmt::format("{} took", scenario_.name); }
  std::string Published() const { return fmt::format("{} published", scenario_.name); }
  std::string Case() const { return fmt::format("wait/{}", scenario_.name); }

 private:
  static ClusterOptions Options(const Scenario& scenario) {
    ClusterOptions options{.receiver = false, .sender = {"--delta-log", "8MiB"}};
    if (scenario.slow) {
      options.sender.insert(options.sender.end(), {"--advertise-host", testing::Proxy::kHost});
    }
    return options;
  }
  void Signal(int signal) const {
    for (const auto& receiver : receivers_) receiver->child().Signal(signal);
  }

  const std::filesystem::path root_;
  const Scenario scenario_;
  Cluster cluster_;
  std::unique_ptr<testing::Proxy> proxy_;
  std::vector<std::unique_ptr<testing::ReceiverProcess>> receivers_;
};

double Percentile99(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() * 99 / 100];
}

Status Waits(Bench& bench, size_t kilobytes, std::span<const Scenario> scenarios, double density,
             size_t publishes) {
  std::vector<std::string> names;
  for (const Scenario& s : scenarios) names.push_back(fmt::format("wait/{}", s.name));
  if (!bench.AnyAsked(names)) return absl::OkStatus();
  ThreadPool pool(1);
  DW_ASSIGN_OR_RETURN(const auto scratch, ScratchDir::Create());
  const ModelSource source = SmallModel(kilobytes);
  DW_ASSIGN_OR_RETURN(const auto weights,
                      Weights::Create(source, scratch->path() / "trainer", bench.seed, 0, pool));
  std::vector<std::unique_ptr<Followed>> all;
  for (const Scenario& s : scenarios) {
    all.push_back(std::make_unique<Followed>(s, scratch->path(), source, pool));
    DW_RETURN_IF_ERROR(all.back()->Begin(weights->content()));
  }
  // Alternate, so that a disturbance of the machine affects all of them.
  Series series;
  for (size_t i = 0; i < (bench.quick ? 5 : publishes); ++i) {
    weights->Flip(density);
    for (const auto& followed : all) {
      DW_RETURN_IF_ERROR(followed->Step(weights->content(), series));
      std::this_thread::sleep_for(kStepTime);
    }
  }
  for (const auto& followed : all) {
    bench.Add(followed->Case(), 1, series,
              {Value("wait", followed->Waited()),
               Value("publish", followed->Took()).Against(all[0]->Took(), "no receiver"),
               Value("ready -> published", followed->Published())
                   .Against(all[0]->Published(), "no receiver")});
    bench.AddValue(followed->Case(), "wait, p99", Percentile99(series.Of(followed->Waited())) * 1e3,
                   "ms");
    bench.AddValue(followed->Case(), "publish, p99",
                   Percentile99(series.Of(followed->Took())) * 1e3, "ms");
  }
  return absl::OkStatus();
}

}  // namespace

Status TrainerWaits(Bench& bench, size_t kilobytes) {
  DW_RETURN_IF_ERROR(Waits(bench, kilobytes, kScenarios, 0.01, kPublishes));
  return Waits(bench, kilobytes, kDenseScenarios, 1, kDensePublishes);
}

}  // namespace deltawire::bench
