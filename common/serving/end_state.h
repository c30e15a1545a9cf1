// The state at which one pull ends. The first publish that overtakes the pull pins it. Until then
// the pull makes frames from the first state that it has seen. The PullPlan owns it.
#pragma once

#include <cstdint>
#include <memory>

#include "common/serving/state_source.h"

namespace deltawire {

class EndState {
 public:
  /// `pinned` null: not decided yet.
  EndState(StateSource& model, std::shared_ptr<const Published> pinned);
  ~EndState() { StopNeedingWayBack(); }
  EndState(const EndState&) = delete;
  EndState& operator=(const EndState&) = delete;

  /// The state at which the pull ends; null: not decided yet.
  const std::shared_ptr<const Published>& pinned() const { return pinned_; }
  /// The state that frames are made from, or at which the pull has ended; null: none yet.
  const std::shared_ptr<const Published>& state() const {
    return pinned_ != nullptr ? pinned_ : first_;
  }

  enum class Use : uint8_t {
    kMake,  ///< make frames from the state
    kOld,   ///< another stream has seen a newer one
    kOver,  ///< make frames from the state, which overtakes `state()`: pin it
  };
  /// Returns the use of `state`, the pinned or the newest one.
  Use Judge(const std::shared_ptr<const Published>& state);
  void Pin(const std::shared_ptr<const Published>& state);
  /// Sets the state that frames are made from, unless the end is pinned.
  void SetFirst(std::shared_ptr<const Published> state);
  /// Pins `end`, a state without content that no frame is made from.
  void Name(const Identity& end, uint64_t side_files_hash);
  /// Pins `state()`, since the pull has ended there.
  void Settle() { pinned_ = state(); }

  /// Has the model keep the way back to its states from now on, until the end is pinned, if
  /// `newest` overtakes the pull.
  void Overtake(const Published& newest);
  /// The number of versions from the first state to `now`.
  uint64_t VersionsTo(const Published& now) const { return now.serial - first_serial_; }

 private:
  void StopNeedingWayBack();

  StateSource& model_;
  std::shared_ptr<const Published> first_;
  uint64_t first_serial_ = 0;  // of first_, which may be null again
  std::shared_ptr<const Published> pinned_;
  std::shared_ptr<const void> pin_;
  bool needs_way_back_ = false;
};

}  // namespace deltawire
