// The limit of a receiver's id, which operators choose and every daemon checks.
#pragma once

#include <cstddef>

namespace deltawire {

/// Bytes. Link estimates, pulls and messages are keyed by the id.
inline constexpr size_t kMaxReceiverId = 128;

}  // namespace deltawire
