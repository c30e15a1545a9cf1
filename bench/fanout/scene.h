// A sender of a small model, its trainer, and the measurement of many followers: the time until the
// last one has a version, and their cost for the sender. Arrivals may be counted on any thread.
// Errors are the daemons' own, and kDeadlineExceeded when a follower is not notified within five
// minutes.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <vector>

#include "bench/harness/bench.h"
#include "bench/harness/buffers.h"
#include "bench/loopback/cluster.h"

namespace deltawire::bench {

inline constexpr std::chrono::seconds kPatience{300};

/// Returns one tensor of bf16.
inline ModelSource SmallModel(size_t kilobytes) {
  return {"fanout", *Layout::Create({{"w", DType::kBF16, {kilobytes * 512}}}), {}, {}};
}

/// Waits for the moment at which the last of many has a version.
class Arrivals {
 public:
  void Expect(uint64_t version, size_t many) {
    missing_ = many;
    version_ = version;
  }
  /// Records that one of them has `version`.
  void Of(uint64_t version) {
    if (version == version_ && --missing_ == 0) all_.release();
  }
  /// `name` is the case's, for the error.
  Status Wait(const std::string& name) {
    if (all_.try_acquire_for(kPatience)) return absl::OkStatus();
    return Errorf(StatusCode::kDeadlineExceeded, "{}: version {} has not reached all followers",
                  name, version_.load());
  }

 private:
  std::atomic<uint64_t> version_ = 0, missing_ = 0;
  std::binary_semaphore all_{0};
};

/// A sender, and a trainer that changes one element in a hundred of its model.
class Scene {
 public:
  explicit Scene(size_t kilobytes) : source_(SmallModel(kilobytes)) {}
  static StatusOr<std::unique_ptr<Scene>> Make(size_t kilobytes,
                                               std::vector<std::string> sender_options = {}) {
    auto scene = std::make_unique<Scene>(kilobytes);
    DW_ASSIGN_OR_RETURN(scene->scratch_, ScratchDir::Create());
    DW_ASSIGN_OR_RETURN(scene->weights_, Weights::Create(scene->source_, scene->root() / "trainer",
                                                         1, 0, scene->pool_));
    const ClusterOptions options{.receiver = false, .sender = std::move(sender_options)};
    scene->cluster_.emplace(scene->root(), scene->source_, options, scene->pool_);
    DW_RETURN_IF_ERROR(scene->cluster_->Begin(scene->weights_->content()));
    scene->Look();
    return scene;
  }
  const std::filesystem::path& root() const { return scratch_->path(); }
  uint64_t bytes() const { return source_.layout.total_bytes(); }
  testing::SenderProcess& sender() { return cluster_->sender(); }
  uint64_t version() const { return cluster_->version(); }
  v1::SenderModelStatus status() { return cluster_->SenderStatus(); }

  /// Publishes the next version and waits until all have it. Adds the seconds of the publish, and
  /// the seconds until all have it, from the publish's begin and from the trainer's last write.
  Status Step(const std::string& name, Arrivals& arrivals, size_t many, Series& s) {
    arrivals.Expect(version() + 1, many);
    weights_->Flip(0.01);
    const auto start = SteadyClock::now();
    DW_ASSIGN_OR_RETURN(const Publication published, cluster_->Publish(weights_->content()));
    s.Add("trainer", published.seconds);
    DW_RETURN_IF_ERROR(arrivals.Wait(name));
    s.Add("all since begin", SecondsSince(start));
    s.Add("all since ready", SecondsSince(published.ready));
    return absl::OkStatus();
  }

  /// Adds the sender's threads, and its memory growth since Make, per follower.
  void AddCost(const std::string& name, size_t many, double at_most_kib, Bench& bench) {
    const size_t threads = threads_;
    const double memory = memory_;
    Look();
    bench.AddValue(name, "sender's threads", static_cast<double>(threads_), "", 0,
                   fmt::format("{} before", threads));
    bench.AddValue(name, "sender's memory each",
                   (memory_ - memory) / 1024 / static_cast<double>(many), "KiB", at_most_kib);
  }

 private:
  void Look() {
    threads_ = testing::ThreadsOf(sender().child().pid());
    memory_ = static_cast<double>(testing::AnonymousBytes(sender().child().pid()));
  }

  ThreadPool pool_{1};
  std::unique_ptr<ScratchDir> scratch_;
  const ModelSource source_;
  std::unique_ptr<Weights> weights_;
  std::optional<Cluster> cluster_;
  size_t threads_ = 0;
  double memory_ = 0;
};

}  // namespace deltawire::bench
