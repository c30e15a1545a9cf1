// What callers ask a Replica for, as functions that return when it is done. For tests and the
// simulation, whose callers have a thread (or fiber) each. `gone` returns true once the caller has
// gone; the call then returns early, with kCancelled.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "common/base/bell.h"
#include "common/base/call_end.h"
#include "receiver/replica/replica.h"

namespace deltawire::testing {

/// Asks, and looks for the answer when the replica tells of one. False: the caller has gone.
inline bool AwaitAnswer(receiver::Replica& replica, const std::function<void()>& ask,
                        const std::function<bool()>& look, const std::function<bool()>& gone) {
  constexpr std::chrono::milliseconds kSlice{50};  // how often `gone` is asked
  const auto bell = std::make_shared<Bell>();
  const auto listener = replica.requests().OnAnswers([bell] { bell->Ring(); });
  ask();
  while (true) {
    if (gone()) return false;
    if (look()) return true;
    bell->WaitUntil(SteadyClock::now() + kSlice);
  }
}

inline StatusOr<receiver::Commit> SyncOf(receiver::Replica& replica, bool force_full,
                                         const std::function<bool()>& gone) {
  StatusOr<uint64_t> request = uint64_t{0};
  StatusOr<std::optional<receiver::Commit>> answer = std::optional<receiver::Commit>();
  const auto look = [&] {
    if (!request.ok()) return true;
    answer = replica.requests().SyncAnswer(*request);
    return !answer.ok() || answer->has_value();
  };
  if (!AwaitAnswer(
          replica, [&] { request = replica.AskSync(force_full); }, look, gone)) {
    if (request.ok()) replica.requests().Forget(*request);
    return CallerGone();
  }
  DW_RETURN_IF_ERROR(request.status());
  DW_RETURN_IF_ERROR(answer.status());
  return **answer;
}

inline StatusOr<receiver::VerifyResult> VerifyOf(receiver::Replica& replica, bool repair,
                                                 const std::function<bool()>& gone) {
  uint64_t request = 0;
  StatusOr<std::optional<receiver::VerifyResult>> answer = std::optional<receiver::VerifyResult>();
  const auto look = [&] {
    answer = replica.requests().CheckAnswer(request);
    return !answer.ok() || answer->has_value();
  };
  if (!AwaitAnswer(
          replica, [&] { request = replica.AskCheck(repair); }, look, gone)) {
    replica.requests().Forget(request);
    return CallerGone();
  }
  DW_RETURN_IF_ERROR(answer.status());
  return **answer;
}

inline Status PauseOf(receiver::Replica& replica, const std::function<bool()>& gone) {
  const bool settled = AwaitAnswer(
      replica, [&] { replica.SetPaused(true); }, [&] { return replica.run().settled(); }, gone);
  return settled ? absl::OkStatus() : CallerGone();
}

}  // namespace deltawire::testing
