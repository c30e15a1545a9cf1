// The length limit of a receiver's id. Operators choose the id, and every daemon checks it.
#pragma once

#include <cstddef>

namespace deltawire {

/// In bytes. Link estimates, pulls and messages are keyed by the id.
inline constexpr size_t kMaxReceiverId = 128;

}  // namespace deltawire
