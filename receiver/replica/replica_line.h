// The phase and the message that a replica shows, and the cause of a failure, which says when it is
// over. It logs each new message once. A Replica owns it, under its lock.
#pragma once

#include <string>
#include <utility>

#include "common/base/log.h"
#include "common/base/receiver_phase.h"
#include "common/base/status.h"
#include "common/base/trace.h"

namespace deltawire::receiver {

class ReplicaLine {
 public:
  /// The cause of kFailed. kConnection is over with the next attachment, kCheck with the next check
  /// that succeeds, kOther with the next pull.
  enum class Cause : uint8_t { kOther, kConnection, kCheck };

  explicit ReplicaLine(std::string model) : model_(std::move(model)) {}

  ReceiverPhase phase() const { return phase_; }
  const std::string& message() const { return message_; }

  /// Shows a failure. `trace`: of the version that failed, for the log; empty: of none.
  void Fail(const Status& failed, Cause cause = Cause::kOther, TraceId trace = {},
            LogLevel level = LogLevel::kWarn);
  /// Shows a failure that was logged already.
  void Show(const std::string& message, Cause cause);
  /// Shows a wait: the upstream runs, and `why` says that it has no version to pull yet.
  void Wait(const std::string& why, LogLevel level);
  /// Nothing is to be pulled: shows `why`, what is waited for, unless a failure stands. Returns
  /// true if the phase became `phase`.
  bool Rest(const std::string& why, ReceiverPhase phase);
  /// Changes the phase and keeps the message. Returns false if it is that already.
  bool Set(ReceiverPhase phase);
  /// A pull has succeeded.
  void Succeed(ReceiverPhase phase);
  /// The failure by `cause` is over.
  void Recover(Cause cause);
  /// The answer to a caller who wants a version while no sender can give one.
  Status WhyNoSender() const;

 private:
  void Put(ReceiverPhase phase, const std::string& message, Cause cause);

  const std::string model_;
  ReceiverPhase phase_ = ReceiverPhase::kStarting;
  std::string message_;
  TraceId trace_;  // of the version that message_ is about
  Cause cause_ = Cause::kOther;
};

}  // namespace deltawire::receiver
