// A wait until receivers have committed a version, or their engines serve it. Its caller polls it
// again whenever the receivers change (Attachments::watchers). One thread at a time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/serving/attachments.h"

namespace deltawire {

/// The attached receivers' progress towards the version of a wait.
struct CommitCensus {
  uint64_t version = 0;             ///< 0: nothing is published yet
  Identity newest;                  ///< the sender's
  size_t attached = 0;              ///< receivers; Until::kServed: those that drive engines
  size_t committed = 0;             ///< those that have the version or a later one
  std::vector<std::string> behind;  ///< ids of the others, kMostBehind at most
  bool operator==(const CommitCensus&) const = default;
};

class CommitWait {
 public:
  static constexpr size_t kMostBehind = 16;
  enum class Until : uint8_t {
    kCommitted,  ///< the receiver has committed it
    kServed,     ///< all engines of the receiver serve it
  };
  struct For {
    uint64_t version = 0;  ///< 0: the newest, or the first if nothing is published yet
    size_t at_least = 1;   ///< receivers that must be attached
    /// This sender has a part of the model. Receivers then commit under a lineage and epoch made
    /// from all senders', and only version and attempt tell whether a state holds this one's part.
    bool part = false;
    Until until = Until::kCommitted;
  };
  struct Step {
    std::optional<CommitCensus> tell;  ///< set when it is new since the last Poll
    /// `at_least` receivers are attached (Until::kServed: and drive engines), and all of them have
    /// the version or a later one of the newest version's lineage and epoch.
    bool over = false;
  };

  /// `attachments` outlives this.
  CommitWait(Attachments& attachments, std::string model, const For& wanted)
      : attachments_(attachments),
        model_(std::move(model)),
        for_(wanted),
        version_(wanted.version) {}

  /// A newer version does not extend the wait. A new epoch does, if the caller asked for the newest
  /// version. A receiver whose only buffer is being changed counts by its last commit. Fails when
  /// the model ends or the sender is stopping.
  StatusOr<Step> Poll();

 private:
  StatusOr<CommitCensus> Count(uint64_t version) const;

  Attachments& attachments_;
  const std::string model_;
  const For for_;
  uint64_t version_;
  std::optional<CommitCensus> told_;
};

}  // namespace deltawire
