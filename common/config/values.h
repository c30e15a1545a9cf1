// Option values as text: sizes, whole numbers, names. Pure functions.
// Errors: kInvalidArgument with the offending text and what would be right.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace deltawire {

/// A whole number within [min, max].
StatusOr<uint64_t> ParseNumber(std::string_view text, uint64_t min, uint64_t max);

/// Bytes: "2GiB", "512 MiB", "1.5GB" is refused (whole numbers only); KiB, MiB, GiB, TiB are powers
/// of 1024, kB, MB, GB, TB of 1000; no unit means bytes.
StatusOr<uint64_t> ParseSize(std::string_view text);
/// The shortest text that ParseSize reads back as `bytes`.
std::string SizeText(uint64_t bytes);

/// [A-Za-z0-9._-]{1,128}, not starting with '.': safe as a directory's name.
Status CheckModelName(std::string_view name);

/// A host name, IPv4 or IPv6 address without brackets.
Status CheckHost(std::string_view host);

}  // namespace deltawire
