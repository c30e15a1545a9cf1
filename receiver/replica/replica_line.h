// The phase and the message that a replica shows, with the cause of a failure or wait, which says
// when it is over. It logs each new message once. A Replica owns it. Every method may be called
// from any thread.
#pragma once

#include <string>
#include <utility>

#include "common/base/checked_mutex.h"
#include "common/base/log.h"
#include "common/base/receiver_phase.h"
#include "common/base/status.h"
#include "common/base/trace.h"
#include "receiver/buffer/buffer_gate.h"

namespace deltawire::receiver {

class ReplicaLine {
 public:
  /// The cause of a failure or wait. kConnection is over when all agents are attached, kCheck with
  /// the next check that succeeds, kOther with the next pull or description.
  enum class Cause : uint8_t { kOther, kConnection, kCheck };

  /// A wait at `gate` shows as the phase kWaitingForReader.
  ReplicaLine(std::string model, const BufferGate& gate) : model_(std::move(model)), gate_(gate) {}

  struct Shown {
    ReceiverPhase phase = ReceiverPhase::kStarting;
    std::string message;
  };
  Shown shown() const ABSL_LOCKS_EXCLUDED(mu_);

  /// Shows a failure. `trace`: of the version that failed, for the log; empty: of none.
  void Fail(const Status& failed, Cause cause = Cause::kOther, TraceId trace = {},
            LogLevel level = LogLevel::kWarn) ABSL_LOCKS_EXCLUDED(mu_);
  /// Shows that a connection has failed, which was logged already.
  void FailConnection(const std::string& message) ABSL_LOCKS_EXCLUDED(mu_);
  /// Shows a wait: the upstream runs, and has no version to pull yet for the reason `why`.
  /// `logged`: it is in the log already.
  void Wait(const std::string& message, const Status& why, Cause cause = Cause::kOther,
            bool logged = false) ABSL_LOCKS_EXCLUDED(mu_);
  /// Shows that nothing is due, and `why`, unless a failure or a connection's wait stands. Returns
  /// true if the phase became `phase`.
  bool Rest(const std::string& why, ReceiverPhase phase) ABSL_LOCKS_EXCLUDED(mu_);
  /// Changes the phase and keeps the message. Returns false if it is that already.
  bool SetPhase(ReceiverPhase phase) ABSL_LOCKS_EXCLUDED(mu_);
  /// A pull has succeeded.
  void Succeed(ReceiverPhase phase) ABSL_LOCKS_EXCLUDED(mu_);
  /// The agents have described the model, so a failure or wait is over.
  void EndWait() ABSL_LOCKS_EXCLUDED(mu_);
  /// The failure or wait by `cause` is over.
  void Recover(Cause cause) ABSL_LOCKS_EXCLUDED(mu_);
  /// The answer to a caller who wants a version while no sender can give one.
  Status WhyNoSender() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Put(ReceiverPhase phase, const std::string& message, Cause cause)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool SetUnder(ReceiverPhase phase) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return std::exchange(phase_, phase) != phase;
  }

  const std::string model_;
  const BufferGate& gate_;
  mutable CheckedMutex mu_;
  ReceiverPhase phase_ ABSL_GUARDED_BY(mu_) = ReceiverPhase::kStarting;
  std::string message_ ABSL_GUARDED_BY(mu_);
  TraceId trace_ ABSL_GUARDED_BY(mu_);  // of the version that message_ is about
  Cause cause_ ABSL_GUARDED_BY(mu_) = Cause::kOther;
};

}  // namespace deltawire::receiver
