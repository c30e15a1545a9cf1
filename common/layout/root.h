// The root of a state: one number over the digests and positions of all its chunks. It is a sum of
// one term per chunk, so a publish updates it in O(changed chunks), and the roots of a model's
// parts add up to the root of the whole. It is defined in docs/delta_format.md, "Root".
#pragma once

#include <cstdint>
#include <span>

#include "common/layout/coverage.h"

namespace deltawire {

/// Returns one chunk's term of the root, modulo 2^64.
uint64_t RootTerm(uint32_t chunk, uint64_t digest);

/// Returns the root of the chunks of `part`. REQUIRES: one digest for every chunk of the model.
uint64_t RootOf(std::span<const uint64_t> digests, const Coverage& part);

}  // namespace deltawire
