// Blocking waits for one offload, for test cases that have a thread for them. The daemon answers
// such calls without one (sender/agent/service.cc).
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "common/base/call_end.h"
#include "sender/agent/offload/offloads.h"

namespace deltawire::sender {

/// Blocks until `rank` is ready (OK) or the offload is over (kAborted). When `gone` returns true
/// before, the rank has gone. REQUIRES: Attend returned OK.
inline Status AwaitReady(Offloads& offloads, uint64_t lease, uint32_t rank,
                         const Offloads::Gone& gone) {
  while (true) {
    const auto ready = offloads.IsReady(lease, rank);
    const bool left = ready.ok() && !*ready && gone();
    if (!ready.ok() || *ready || left) {
      offloads.EndAttend(lease, rank);
      return left ? CallerGone() : ready.status();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Blocks for Offloads::Outcome, or until `gone` returns true (kCancelled).
inline StatusOr<VersionInfo> WaitPublished(Offloads& offloads, uint64_t version, uint64_t lease,
                                           const Offloads::Gone& gone, uint64_t attempt = 0) {
  offloads.CountWaiters(lease, 1);
  while (true) {
    const auto outcome = offloads.Outcome(version, lease, attempt);
    if (outcome || gone()) {
      offloads.CountWaiters(lease, -1);
      return outcome ? *outcome : CallerGone();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace deltawire::sender
