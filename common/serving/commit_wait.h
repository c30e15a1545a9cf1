// A wait until receivers have committed a version, or their engines serve it: what its caller is
// told, asked again whenever the receivers change (Attachments::Listen). Owner: the call. Threads:
// one at a time. Cost: a look at each attached receiver. Errors: the Attachments are stopping.
#pragma once

#include <optional>
#include <string>

#include "common/serving/attachments.h"

namespace deltawire {

class CommitWait {
 public:
  struct For {
    uint64_t version = 0;  ///< 0: the newest, or the first if nothing is published yet
    size_t at_least = 1;   ///< receivers that must be attached
    /// This sender has a part of the model. Lineage and epoch of what receivers commit are then
    /// made of all senders', and only version and attempt tell whether it holds this one's part.
    bool part = false;
    Attachments::Until until = Attachments::Until::kCommitted;
  };
  struct Step {
    std::optional<Attachments::Census> tell;  ///< set when it is new since the last Poll
    /// `at_least` receivers are attached (Until::kServed: and drive engines), and all of them have
    /// got the version or a later one of the newest one's lineage and epoch so far.
    bool over = false;
  };

  /// `attachments` outlives this.
  CommitWait(const Attachments& attachments, std::string model, const For& wanted)
      : attachments_(attachments),
        model_(std::move(model)),
        for_(wanted),
        version_(wanted.version) {}

  /// A rollback makes the new epoch's version the goal where the newest was asked for. A receiver
  /// whose only buffer is being changed counts by what it committed before.
  StatusOr<Step> Poll() {
    DW_ASSIGN_OR_RETURN(auto now, Count(version_));
    // Later versions do not move the goal, but where the newest was asked for, another epoch does.
    if (told_ && for_.version == 0 &&
        (now.newest.lineage != told_->newest.lineage ||
         now.newest.id.epoch != told_->newest.id.epoch)) {
      DW_ASSIGN_OR_RETURN(now, Count(0));
    }
    version_ = now.version;
    Step step;
    step.over =
        !now.newest.empty() && now.attached >= for_.at_least && now.committed == now.attached;
    if (now != told_) step.tell = now;
    told_ = std::move(now);
    return step;
  }

 private:
  StatusOr<Attachments::Census> Count(uint64_t version) const {
    return attachments_.CensusOf(model_, version, for_.part, for_.until);
  }

  const Attachments& attachments_;
  const std::string model_;
  const For for_;
  uint64_t version_;
  std::optional<Attachments::Census> told_;
};

}  // namespace deltawire
