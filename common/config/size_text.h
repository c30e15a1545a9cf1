// Sizes as people write them: "512", "64kB", "1.5GiB". kInvalidArgument describes the form of a
// size.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/status.h"

namespace deltawire {

/// Returns bytes, rounded down. Units are b, k, m, g, t, p and e, alone or with b, i or ib, in any
/// case. With `kb_is_1000`, 1 kB is 1,000 bytes and 1 KiB is 1,024; otherwise both are 1,024.
StatusOr<uint64_t> ParseSize(std::string_view text, bool kb_is_1000);

}  // namespace deltawire
