// The order in which the streams of one pull send chunks, and the state at which the pull ends. A
// chunk stays on the stream that took it. The first publish that overtakes the pull pins its end:
// unsent chunks are sent at that version, sent ones are lifted to it by delta, and later versions
// wait. The ServedPull calls it under its lock. It takes 36 bytes a chunk.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/serving/end_state.h"
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
    kGranted,    ///< the receiver's Have has not arrived
    kIncoming,   ///< frames are pieces of the incoming version
    kPublished,  ///< frames are chunks of a published state
    kEnded,      ///< no stream has anything left to send
  };
  enum class Kind : uint8_t {
    kFrame,  ///< make the frame, then call Finish
    kWait,   ///< wait for another stream, the incoming version or Start
    kRetry,  ///< call again with a new lease
    kEnd,    ///< send the End frame
  };
  struct Step {
    Kind kind = Kind::kWait;
    FrameTask task = {};
  };

  PullPlan(StateSource& model, const PullTerms& terms, const FrameMaker& maker);

  /// `have`: the receiver's chunks. kGranted -> kIncoming or kPublished.
  void Start(const wire::Have& have);
  /// Returns the next step of `stream`. `from`: the pinned or the newest state, or in kIncoming the
  /// state from FrameMaker::LeaseBase. Fails if the incoming version was abandoned.
  StatusOr<Step> Next(uint16_t stream, const LeasedState& from);
  /// Ends the stream's task. `later`: its chunk is tried again.
  void Finish(uint16_t stream, FrameTask task, bool later);

  /// See EndState.
  void Overtake(const Published& newest) {
    if (phase_ == Phase::kPublished) end_.Overtake(newest);
  }
  /// Pins the published form of the incoming version, if the pull ends at that version.
  void PinIncoming(const std::shared_ptr<const Published>& state);

  Phase phase() const { return phase_; }
  const EndState& end() const { return end_; }
  /// Whether the stream has to lift chunks that it sent before the pull was overtaken.
  bool HasLifts(uint16_t stream) const;
  /// Whether most of the model is sent whole. `end`: the published state, or null.
  PullClass Classify(const Published* end) const;

 private:
  /// A chunk whose frame could not be made, for another try by its stream.
  struct Postponed {
    uint32_t chunk = 0;
    bool lift = false;
    /// Set: the chunk is sent once its payload is made. Otherwise it waits for the published state.
    std::optional<IncomingVersion::Piece> piece;
  };
  struct Work {
    std::vector<uint32_t> sent;  // chunks that were sent before the pull was overtaken
    size_t lifted = 0;           // the number of `sent` that were lifted
    std::deque<Postponed> postponed;
    bool retried = false;  // the last task was a postponed chunk, or became one
    bool making = false;   // between Next and Finish
  };

  /// Returns whether frames are made from `state` now. Pins the first state that overtakes the
  /// pull.
  bool Accept(const std::shared_ptr<const Published>& state);
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

  /// `base`: the state at which the incoming version's deltas start, if a codec may read it.
  StatusOr<std::optional<FrameTask>> NextPiece(Work& work, const LeasedState& base);
  std::optional<FrameTask> NextPostponedPiece(Work& work, const LeasedState& base);
  /// Returns whether the receiver can use the piece. Sets `as_fast`.
  bool Fits(FrameTask& task) const;
  /// Chooses the codec as for a published chunk. Returns false if the chunk is better encoded once
  /// the version is published.
  bool ChooseCodec(FrameTask& task, const LeasedState& base, IncomingVersion::Step step) const;
  void TakePiece(Work& work, const FrameTask& task);

  StateSource& model_;
  const PullTerms& terms_;
  const FrameMaker& maker_;
  Phase phase_ = Phase::kGranted;
  wire::Have have_;         // the receiver's chunks, with the pieces that were sent
  std::vector<Work> work_;  // by stream
  uint32_t cursor_ = 0;
  uint64_t refused_bases_ = 0;
  // Pieces of the incoming version: the number examined, the bytes sent, and by chunk whether it
  // was sent.
  size_t seen_pieces_ = 0;
  uint64_t piece_bytes_ = 0;
  std::vector<uint8_t> sent_piece_;
  EndState end_;
};

}  // namespace deltawire
