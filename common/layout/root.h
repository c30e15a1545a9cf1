// The root of a state: one number over the digests of all its chunks, by position. A sum of one
// term per chunk, so that it follows a publish in O(changed chunks) and the roots of a model's
// parts add up to the whole's. Definition: docs/delta_format.md, "Root". Pure.
#pragma once

#include <cstdint>
#include <span>

#include "common/layout/coverage.h"

namespace deltawire {

/// What one chunk adds to the root, modulo 2^64.
uint64_t RootTerm(uint32_t chunk, uint64_t digest);

/// The root of chunks `part` of a model with these digests.
uint64_t RootOf(std::span<const uint64_t> digests, const Coverage& part);

}  // namespace deltawire
