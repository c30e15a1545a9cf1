#include "sender/agent/publisher.h"

#include <chrono>
#include <utility>

#include "common/base/human.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "common/layout/scrub_walk.h"

namespace deltawire::sender {
namespace {

using Clock = SteadyClock;

}  // namespace

Publisher::Publisher(ModelStates& states, Offloads& offloads, const SenderOptions& options,
                     StageObserver stages)
    : states_(states),
      offloads_(offloads),
      scrub_bytes_per_s_(options.scrub_bytes_per_s),
      stages_(std::move(stages)) {}

Publisher::~Publisher() {
  if (thread_.joinable()) thread_.join();
}

void Publisher::Start() {
  thread_ = Thread([this] { Run(); });
}

void Publisher::Run() {
  auto scrub_at = scrub_bytes_per_s_ == 0 ? Clock::time_point::max() : Clock::now();
  while (true) {
    if (const auto written = offloads_.AwaitWritten(scrub_at)) {
      (void)Publish(*written);
    } else if (offloads_.stopped()) {
      return;
    } else {
      scrub_at = Clock::now() + std::chrono::duration_cast<Clock::duration>(ScrubSome());
    }
  }
}

StatusOr<VersionInfo> Publisher::RollBack(uint64_t version) {
  DW_ASSIGN_OR_RETURN(const WrittenHalf written, offloads_.RollBack(version));
  return Publish(written);
}

StatusOr<VersionInfo> Publisher::Publish(const WrittenHalf& written) {
  const auto start = Clock::now();
  VersionInfo info;
  info.ready_unix_nanos = UnixNanos();
  // The lease keeps the scrub from patching the base.
  LeasedState base = states_.Lease();
  const StateId from = base.state == nullptr ? StateId{} : base.state->info.id();
  auto diffed = written.job->Finish(from, written.to, written.unchanged, states_.pool());
  // The next offload drains this half, and may begin before all receivers are notified.
  base = {};
  info.diff_seconds = SecondsSince(start);
  if (written.job->payload_was_wrong()) offloads_.diff().DistrustPayloads();
  const ModelHome& home = states_.home();
  const Status made =
      diffed.ok() ? home.side_files().Keep(ModelHome::UseOf(written.half), written.side_files)
                  : diffed.status();
  if (!made.ok()) {
    offloads_.FailPublish(Annotate(made, fmt::format("model \"{}\", {}: not published",
                                                     states_.name(), ToString(written.to))));
    return made;
  }
  PublishJob::Result& result = *diffed;
  Halves& halves = states_.halves();
  info.identity = {halves.lineage(), written.to, result.root, written.attempt};
  halves.Commit(written.half, info.identity, *result.digests);
  info.model_bytes = states_.owned_bytes();
  info.elements = home.facts()->owned_elements;
  info.changed_elements = result.changed_elements;
  info.full_bytes = result.full_bytes;
  info.delta_bytes = result.delta_bytes;
  info.trainer_wait_seconds = written.waited_seconds;
  info.offload_seconds = written.offload_seconds;
  info.publish_seconds = SecondsSince(start);
  info.published_unix_nanos = UnixNanos();
  info.rollback = written.rollback;
  info.side_files_hash = written.side_files->hash;
  auto state = states_.store().Make(info, written.half);
  state->digests = std::move(result.digests);
  state->tensors = std::move(result.tensors);
  state->side_files = written.side_files;
  for (const uint32_t c : result.damaged) state->damaged[c] = 1;
  {
    MutexLock lock(mu_);
    ++totals_.published;
    totals_.delta_bytes += info.delta_bytes;
    totals_.trainer_wait_seconds += info.trainer_wait_seconds;
    totals_.publish_seconds += info.publish_seconds;
  }
  // First, since a receiver may report its commit at once.
  history_.Add(info);
  offloads_.MarkPublished(std::move(state), std::move(result.delta));
  Report(info);
  if (changed_) changed_();
  return info;
}

void Publisher::Report(const VersionInfo& info) const {
  const double changed = info.elements == 0 ? 0
                                            : static_cast<double>(info.changed_elements) /
                                                  static_cast<double>(info.elements);
  LogInfo("model {}: {} published: {:.2f}% changed, delta {}, in {} {}", states_.name(),
          ToString(info.id()), 100 * changed, HumanBytes(info.delta_bytes + info.full_bytes),
          HumanSeconds(info.publish_seconds), ToString(TraceOf(info.identity)));
  if (!stages_) return;
  stages_({Stage::kWait, info.trainer_wait_seconds, states_.name()});
  stages_({Stage::kOffload, info.offload_seconds, states_.name()});
  stages_({Stage::kDiff, info.diff_seconds, states_.name()});
  stages_({Stage::kPublish, info.publish_seconds, states_.name()});
}

PublishTotals Publisher::totals() const {
  PublishTotals totals;
  {
    MutexLock lock(mu_);
    totals = totals_;
  }
  totals.abandoned = offloads_.abandoned();
  return totals;
}

std::chrono::nanoseconds Publisher::ScrubSome() {
  if (!offloads_.idle()) return ScrubWalk::kShortest;
  const LeasedState leased = states_.Lease();
  if (leased.state == nullptr) return ScrubWalk::kShortest;
  return states_.scrubber().CheckNext(*leased.state, scrub_bytes_per_s_);
}

}  // namespace deltawire::sender
