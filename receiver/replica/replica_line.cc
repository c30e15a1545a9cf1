#include "receiver/replica/replica_line.h"

namespace deltawire::receiver {

ReplicaLine::Shown ReplicaLine::shown() const {
  const bool waits = gate_.waits().waiting;
  MutexLock lock(mu_);
  return {.phase = waits ? ReceiverPhase::kWaitingForReader : phase_, .message = message_};
}

void ReplicaLine::Put(ReceiverPhase phase, const std::string& message, Cause cause) {
  phase_ = phase;
  message_ = message;
  trace_ = {};
  cause_ = cause;
}

void ReplicaLine::Fail(const Status& failed, Cause cause, TraceId trace, LogLevel level) {
  MutexLock lock(mu_);
  if (MessageOf(failed) != message_ || !(trace == trace_)) {
    LogLine(level, "model {}: {}{}", model_, MessageOf(failed),
            trace == TraceId{} ? "" : fmt::format(" {}", ToString(trace)));
  }
  Put(ReceiverPhase::kFailed, std::string(MessageOf(failed)), cause);
  trace_ = trace;
}

void ReplicaLine::FailConnection(const std::string& message) {
  MutexLock lock(mu_);
  Put(ReceiverPhase::kFailed, message, Cause::kConnection);
}

void ReplicaLine::Wait(const std::string& message, const Status& why, Cause cause, bool logged) {
  const std::string text = fmt::format("waiting for a version: {}", message);
  // A sender that has lost a model is worth a warning.
  const bool lost = absl::IsNotFound(why) && !gate_.version().committed().empty();
  const auto level = logged ? LogLevel::kDebug : lost ? LogLevel::kWarn : LogLevel::kInfo;
  MutexLock lock(mu_);
  if (text != message_) LogLine(level, "model {}: {}", model_, text);
  Put(ReceiverPhase::kWaitingForVersion, text, cause);
}

bool ReplicaLine::Rest(const std::string& why, ReceiverPhase phase) {
  MutexLock lock(mu_);
  // The caller may not have seen yet that a connection has ended.
  if (phase_ == ReceiverPhase::kFailed || cause_ == Cause::kConnection) return false;
  if (why != message_ && !why.empty()) LogInfo("model {}: {}", model_, why);
  message_ = why;
  cause_ = Cause::kOther;
  return SetUnder(phase);
}

bool ReplicaLine::SetPhase(ReceiverPhase phase) {
  MutexLock lock(mu_);
  return SetUnder(phase);
}

void ReplicaLine::Succeed(ReceiverPhase phase) {
  MutexLock lock(mu_);
  phase_ = phase;
  message_.clear();
  cause_ = Cause::kOther;
}

void ReplicaLine::EndWait() {
  MutexLock lock(mu_);
  if (phase_ != ReceiverPhase::kFailed && phase_ != ReceiverPhase::kWaitingForVersion) return;
  phase_ = ReceiverPhase::kStarting;
}

void ReplicaLine::Recover(Cause cause) {
  MutexLock lock(mu_);
  if (cause_ != cause) return;
  cause_ = Cause::kOther;
  if (phase_ != ReceiverPhase::kFailed && phase_ != ReceiverPhase::kWaitingForVersion) return;
  phase_ = ReceiverPhase::kStarting;
  message_.clear();
}

Status ReplicaLine::WhyNoSender() const {
  MutexLock lock(mu_);
  if (phase_ == ReceiverPhase::kWaitingForVersion) {
    return Errorf(StatusCode::kUnavailable, "model \"{}\": {}", model_, message_);
  }
  return Errorf(StatusCode::kUnavailable, "model \"{}\" has no sender: {}", model_,
                message_.empty() ? "not connected yet, try again" : message_);
}

}  // namespace deltawire::receiver
