// Waits for a replica's next commit in the caller's own thread. Owner: none; a free function.
// Threads: any. Cost: a wait on a condition, and a look at `gone` every 100 ms. Errors: nullopt.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "common/base/bell.h"
#include "receiver/replica/replica.h"

namespace deltawire::testing {

/// Returns the last commit when its serial is above `seen`; nullopt when `gone` returns true or the
/// replica stops before there is one.
inline std::optional<receiver::Commit> NextCommit(receiver::Replica& replica, uint64_t seen,
                                                  const std::function<bool()>& gone) {
  const auto bell = std::make_shared<Bell>();
  const auto listener = replica.commits().OnCommit([bell] { bell->Ring(); });
  while (true) {
    const auto commit = replica.commits().CommitAfter(seen);
    if (!commit.ok()) return std::nullopt;
    if (commit->has_value()) return **commit;
    if (gone()) return std::nullopt;
    bell->WaitUntil(SteadyClock::now() + std::chrono::milliseconds(100));
  }
}

}  // namespace deltawire::testing
