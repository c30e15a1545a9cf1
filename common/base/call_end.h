// How a daemon's call ends that could not go on: the daemon stops, or whoever asked has gone.
// Pure functions.
#pragma once

#include <string_view>

#include "common/base/status.h"

namespace deltawire {

/// `daemon`: "sender" or "receiver". Whoever asks again later may find it started anew.
inline Status Stopping(std::string_view daemon) {
  return Errorf(StatusCode::kUnavailable, "the {} is stopping", daemon);
}

inline Status CallerGone() { return absl::CancelledError("the caller has gone"); }

}  // namespace deltawire
