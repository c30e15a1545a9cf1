// The statuses of a daemon's call that cannot go on: the daemon stops, or the caller has gone.
#pragma once

#include <string_view>

#include "common/base/status.h"

namespace deltawire {

/// `daemon` is "sender" or "receiver". The caller may retry, since the daemon may be restarted.
inline Status Stopping(std::string_view daemon) {
  return Errorf(StatusCode::kUnavailable, "the {} is stopping", daemon);
}

inline Status CallerGone() { return absl::CancelledError("the caller has gone"); }

}  // namespace deltawire
