// Checks of an engine's memory: the requests, and the results of the last ones. Its owner
// synchronizes.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace deltawire::receiver {

/// The result of a check. `error` is empty if all of the memory is as it should be.
struct EngineCheck {
  uint64_t number = 0;  ///< of the last request that it answers
  std::string error;    ///< the drift that it found, or why it could not be made
  bool drifted = false;
};

class EngineChecks {
 public:
  /// Returns the request's number.
  uint64_t Ask() { return ++asked_; }
  /// Returns true while a request has no result.
  bool pending() const;
  /// Marks the beginning of a check, which answers all requests so far.
  void Begin() { begun_ = asked_; }
  void End(std::string error, bool drifted = false);
  /// Answers all pending requests with `why`.
  void Refuse(const std::string& why);
  /// Returns the last results, oldest first.
  const std::deque<EngineCheck>& ended() const { return ended_; }

 private:
  uint64_t asked_ = 0, begun_ = 0;
  std::deque<EngineCheck> ended_;
};

}  // namespace deltawire::receiver
