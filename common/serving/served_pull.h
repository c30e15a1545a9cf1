// One receiver's pull: its streams, their deadlines and its end. PullPlan decides what the streams
// send, and FrameMaker makes it. The PullDesk and the bulk streams share it. Thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/checked_mutex.h"
#include "common/base/sync.h"
#include "common/net/pull_server.h"
#include "common/serving/admitted_pull.h"
#include "common/serving/frame_maker.h"
#include "common/serving/incoming_version.h"
#include "common/serving/pull_plan.h"
#include "common/serving/pull_streams.h"
#include "common/serving/pull_tally.h"
#include "common/serving/pull_terms.h"
#include "common/serving/state_source.h"

namespace deltawire {

class ServedPull : public net::PullSession, public IncomingVersion::Watcher {
 public:
  ServedPull(std::shared_ptr<StateSource> model, PullTerms terms);

  uint32_t chunks() const override { return model_->chunks().size(); }
  std::array<TokenBucket*, 2> rates() override {
    return {terms_.rate.get(), terms_.site_rate.get()};
  }
  net::Pacing* pacing() override { return terms_.admission == nullptr ? nullptr : &turn_; }
  net::LinkFigures link() override { return {.bytes_per_s = terms_.coding.link->bytes_per_s()}; }
  void Measured(const net::TcpFacts& facts) override { terms_.coding.link->AddFacts(facts); }
  void Waited(uint16_t stream, uint64_t queued, uint64_t left) override;
  Status Start(const wire::Have& have) override;
  StatusOr<std::optional<net::OutFrame>> Next(uint16_t stream, std::function<void()> wake) override;
  void StreamOpened(uint16_t stream, std::function<void()> cut) override;
  void StreamClosed(uint16_t stream, const Status& why) override;
  void OnPiece(bool last) override;

  /// kInvalidArgument when the stream is out of range or was reserved before.
  Status Reserve(uint16_t stream, uint16_t streams);
  /// Ends the pull and closes its streams.
  void Cut(const Status& why);
  /// Cuts the pull if one of its streams still reads `half`; returns whether it did.
  bool CutIfReading(uint32_t half, std::string_view why);
  /// Cuts the pull if a stream, or Have, has not arrived within the ticket's life; returns whether
  /// it did. Once all streams have arrived, Have gets the time that a slow link needs.
  bool CutIfLate(SteadyClock::time_point now);
  /// See EndState::Overtake.
  void Overtake(const Published& newest);
  /// Cuts the pull if the VersionStore has discarded the way back to its end; returns whether it
  /// did.
  bool CutIfDiscarded();

  const PullTerms& terms() const { return terms_; }
  const std::shared_ptr<StateSource>& model() const { return model_; }
  const PullTally& tally() const { return tally_; }
  /// When a stream was last opened or asked for a frame; before that, when the pull was granted.
  SteadyClock::time_point last_heard() const;
  /// Whether no stream is open, and all have ended, the pull failed, or its ticket's life is over.
  bool IsFinished(SteadyClock::time_point now) const;

 private:
  using Callbacks = PullStreams::Callbacks;
  using Stream = PullStreams::Stream;
  using StreamState = PullStreams::State;

  /// The stages of a pull whose streams have all sent their End, in seconds.
  struct Course {
    double connect = 0, encode = 0, send = 0;
  };

  LeasedState Lease(PullPlan::Phase phase, std::shared_ptr<const Published> pinned) const;
  /// Returns the next step of the stream, and in `wakes` the streams that can go on.
  StatusOr<PullPlan::Step> Step(Stream& stream, uint16_t index, const LeasedState& leased,
                                const std::function<void()>& wake, Callbacks& wakes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Records that the socket has taken the stream's last frame.
  void NoteFrameTaken(Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EstimateLink() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  /// Nullopt: the pull is not over, or failed.
  std::optional<Course> CourseOfEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fail(const Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogEnd(const Status& why) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<StateSource> model_;
  const PullTerms terms_;
  const SteadyClock::time_point created_;
  PullTally tally_;
  FrameMaker maker_;
  AdmittedPull turn_;

  mutable CheckedMutex mu_;
  PullPlan plan_ ABSL_GUARDED_BY(mu_);
  Status failed_ ABSL_GUARDED_BY(mu_);
  PullStreams streams_ ABSL_GUARDED_BY(mu_);
  SteadyClock::time_point last_heard_ ABSL_GUARDED_BY(mu_);
  // When a version that was incoming was published.
  std::optional<SteadyClock::time_point> settled_ ABSL_GUARDED_BY(mu_);
};

}  // namespace deltawire
