// Decides what each stream of one pull sends next, and at which state the pull ends. A chunk stays
// on the stream that took it. The first publish that overtakes the pull pins its end: unsent chunks
// go out at that version, sent ones are lifted to it by delta, and later versions wait. The
// ServedPull calls it under its lock. It costs 36 bytes a chunk while the pull runs.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/serving/frame_maker.h"
#include "common/serving/pull_terms.h"
#include "common/serving/state_source.h"
#include "common/wire/messages.h"

namespace deltawire {

class PullPlan {
 public:
  /// Allowed moves:
  ///   kGranted -> kPublished -> kEnded
  ///   kGranted -> kIncoming -> kPublished, kEnded
  enum class Phase : uint8_t {
    kGranted,    ///< the receiver's Have has not come
    kIncoming,   ///< frames are pieces of the incoming version
    kPublished,  ///< frames are chunks of a published state
    kEnded,      ///< no stream has anything left to send
  };
  enum class Kind : uint8_t {
    kFrame,  ///< make the frame, then call Finish
    kWait,   ///< until another stream, the incoming version or Start has news
    kRetry,  ///< call again with a new lease
    kEnd,    ///< send the End frame
  };
  struct Step {
    Kind kind = Kind::kWait;
    FrameTask task = {};
  };

  PullPlan(StateSource& model, const PullTerms& terms, const FrameMaker& maker);
  ~PullPlan() { StopNeedingWayBack(); }
  PullPlan(const PullPlan&) = delete;
  PullPlan& operator=(const PullPlan&) = delete;

  /// `have`: what the receiver holds. kGranted -> kIncoming or kPublished.
  void Start(const wire::Have& have);
  /// The next step of `stream`. `from`: the pinned or the newest state, or in kIncoming the state
  /// from FrameMaker::LeaseBase. The error with which the incoming version was abandoned ends the
  /// pull.
  StatusOr<Step> Next(uint16_t stream, const LeasedState& from);
  /// The stream has made its frame, or could not. `later`: its chunk is tried again.
  void Finish(uint16_t stream, FrameTask task, bool later);

  /// `newest` has been published: from now on what leads back to it is kept, until the pull has
  /// pinned its end.
  void Overtake(const Published& newest);
  /// The incoming version is published, as `state`, and a pull that is to end there does.
  void PinIncoming(const std::shared_ptr<const Published>& state);

  Phase phase() const { return phase_; }
  /// The state that the pull ends at; null: not decided yet.
  const std::shared_ptr<const Published>& pinned() const { return pinned_; }
  /// The state that frames are made from, or that the pull has ended at; null: none yet.
  const std::shared_ptr<const Published>& state() const {
    return pinned_ != nullptr ? pinned_ : first_;
  }
  /// Whether the stream has to lift chunks that it sent before the pull was overtaken.
  bool HasLifts(uint16_t stream) const;
  /// Whether most of the model goes out whole. `end`: the published state, if there is one.
  PullClass Classify(const Published* end) const;

 private:
  /// A chunk that its stream tries again, since its frame could not be made.
  struct Postponed {
    uint32_t chunk = 0;
    bool lift = false;
    /// Set: it is sent as soon as its payload is made. Else it waits for the published state.
    std::optional<IncomingVersion::Piece> piece;
  };
  struct Work {
    std::vector<uint32_t> sent;  // chunks that went out before the pull was overtaken
    size_t lifted = 0;           // how many of `sent` were lifted
    std::deque<Postponed> postponed;
    bool retried = false;  // the last task was a postponed chunk, or became one
    bool making = false;   // between Next and Finish
  };

  /// Whether frames are made from `state` now. Pins the first state that overtakes the pull.
  bool Accept(const std::shared_ptr<const Published>& state);
  void Pin(const std::shared_ptr<const Published>& state);
  void StopNeedingWayBack();
  void End(const Published& now);
  /// Whether a stream has postponed a chunk, or may yet postpone one.
  bool HasUnfinished() const;
  ChunkHistory HistoryOf(uint32_t chunk, const Published& now) const;

  std::optional<FrameTask> NextChunk(Work& work, const Published& now);
  /// Nullopt if the receiver has the chunk.
  std::optional<FrameTask> PlanChunk(Work& work, uint32_t chunk, const Published& now);
  std::optional<FrameTask> PlanLift(uint32_t chunk, const Published& now) const;
  std::optional<FrameTask> NextLift(Work& work, const Published& now);
  std::optional<FrameTask> NextPostponed(Work& work, const Published& now);

  /// `base`: the state that the incoming version's deltas start at, if a codec may read it.
  StatusOr<std::optional<FrameTask>> NextPiece(Work& work, const LeasedState& base);
  std::optional<FrameTask> NextPostponedPiece(Work& work, const LeasedState& base);
  /// Whether the piece is of use to the receiver, and in which form.
  bool Fits(FrameTask& task) const;
  /// Chooses the codec as for a published chunk. False: the chunk is better encoded once the
  /// version is published.
  bool ChooseCodec(FrameTask& task, const LeasedState& base, IncomingVersion::Step step) const;
  void TakePiece(Work& work, const FrameTask& task);

  StateSource& model_;
  const PullTerms& terms_;
  const FrameMaker& maker_;
  Phase phase_ = Phase::kGranted;
  wire::Have have_;         // what the receiver has, with the pieces that went out
  std::vector<Work> work_;  // by stream
  uint32_t cursor_ = 0;
  uint64_t refused_bases_ = 0;
  // Pieces of the incoming version: how many were looked at, the bytes of those that went out, and
  // by chunk whether one did.
  size_t seen_pieces_ = 0;
  uint64_t piece_bytes_ = 0;
  std::vector<uint8_t> sent_piece_;
  std::shared_ptr<const Published> first_;  // state that frames are made from before pinned_
  uint64_t first_serial_ = 0;               // of first_, also when that is null again
  std::shared_ptr<const Published> pinned_;
  std::shared_ptr<const void> pin_;
  bool needs_way_back_ = false;
};

}  // namespace deltawire
