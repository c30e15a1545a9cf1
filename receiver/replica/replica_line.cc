#include "receiver/replica/replica_line.h"

namespace deltawire::receiver {

void ReplicaLine::Put(ReceiverPhase phase, const std::string& message, Cause cause) {
  phase_ = phase;
  message_ = message;
  trace_ = {};
  cause_ = cause;
}

void ReplicaLine::Fail(const Status& failed, Cause cause, TraceId trace, LogLevel level) {
  if (MessageOf(failed) != message_ || !(trace == trace_)) {
    LogLine(level, "model {}: {}{}", model_, MessageOf(failed),
            trace == TraceId{} ? "" : fmt::format(" {}", ToString(trace)));
  }
  Put(ReceiverPhase::kFailed, std::string(MessageOf(failed)), cause);
  trace_ = trace;
}

void ReplicaLine::Show(const std::string& message, Cause cause) {
  Put(ReceiverPhase::kFailed, message, cause);
}

void ReplicaLine::Wait(const std::string& why, LogLevel level) {
  const std::string text = fmt::format("waiting for a version: {}", why);
  if (text != message_) LogLine(level, "model {}: {}", model_, text);
  Put(ReceiverPhase::kWaitingForVersion, text, Cause::kOther);
}

bool ReplicaLine::Rest(const std::string& why, ReceiverPhase phase) {
  Recover(Cause::kConnection);
  if (phase_ == ReceiverPhase::kFailed) return false;
  if (why != message_ && !why.empty()) LogInfo("model {}: {}", model_, why);
  message_ = why;
  return Set(phase);
}

bool ReplicaLine::Set(ReceiverPhase phase) { return std::exchange(phase_, phase) != phase; }

void ReplicaLine::Succeed(ReceiverPhase phase) {
  phase_ = phase;
  message_.clear();
}

void ReplicaLine::Recover(Cause cause) {
  if (cause_ != cause) return;
  cause_ = Cause::kOther;
  if (phase_ != ReceiverPhase::kFailed) return;
  phase_ = ReceiverPhase::kStarting;
  message_.clear();
}

Status ReplicaLine::WhyNoSender() const {
  if (phase_ == ReceiverPhase::kWaitingForVersion) {
    return Errorf(StatusCode::kUnavailable, "model \"{}\": {}", model_, message_);
  }
  return Errorf(StatusCode::kUnavailable, "model \"{}\" has no sender: {}", model_,
                message_.empty() ? "not connected yet, try again" : message_);
}

}  // namespace deltawire::receiver
