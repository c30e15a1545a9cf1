#include "common/serving/commit_wait.h"

namespace deltawire {

StatusOr<CommitWait::Step> CommitWait::Poll() {
  DW_ASSIGN_OR_RETURN(CommitCensus now, Count(version_));
  if (told_ && for_.version == 0 &&
      (now.newest.lineage != told_->newest.lineage ||
       now.newest.id.epoch != told_->newest.id.epoch)) {
    DW_ASSIGN_OR_RETURN(now, Count(0));
  }
  version_ = now.version;
  Step step;
  step.over = !now.newest.empty() && now.attached >= for_.at_least && now.committed == now.attached;
  if (now != told_) step.tell = now;
  told_ = std::move(now);
  return step;
}

StatusOr<CommitCensus> CommitWait::Count(uint64_t version) const {
  VersionFeed& feed = attachments_.feed();
  DW_ASSIGN_OR_RETURN(const VersionFeed::State state, feed.StateOf(model_));
  const Identity& newest = state.newest.info.identity;
  CommitCensus census{.version = version == 0 ? newest.id.version : version, .newest = newest};
  attachments_.ForEach(model_, [&](const AttachedReceiver& r) {
    const bool served = for_.until == Until::kServed;
    const EnginesServe& engines = r.report().engines;
    // A receiver of an older release may drive engines without saying so: it counts as behind.
    if (served && engines.engines == 0U) return;
    ++census.attached;
    const Identity& reached = served ? engines.oldest : r.committed();
    // A rollback may publish a lower number than receivers hold, so the epochs must be equal.
    const bool same_history =
        for_.part ? feed.HasPublished(model_, reached)
                  : reached.lineage == newest.lineage && reached.id.epoch == newest.id.epoch;
    const bool has =
        !reached.empty() && !newest.empty() && same_history && reached.id.version >= census.version;
    census.committed += has ? 1 : 0;
    if (!has && census.behind.size() < kMostBehind) census.behind.push_back(r.who().id);
  });
  return census;
}

}  // namespace deltawire
