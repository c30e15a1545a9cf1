// The id by which logs follow one version from the trainer to the engines. Both ends compute it
// from what they know of the version anyway, so it does not travel (docs/decisions.md, "A trace id
// is computed"). A plain value. Cost: one hash. Errors: none.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/identity.h"

namespace deltawire {

/// 0: there is no version.
struct TraceId {
  uint64_t value = 0;
  friend bool operator==(TraceId, TraceId) = default;
};

/// The trace of the version that an offload or a rollback makes: XXH3-64 of version and attempt,
/// each 8 bytes, little-endian. The same at all agents of a trainer and at every receiver.
TraceId TraceOf(uint64_t version, uint64_t attempt);
/// The trace of a state. If its attempt is not known, it is made of version, epoch and lineage.
TraceId TraceOf(const Identity& identity);

/// "trace=0123456789abcdef": the form in which each log line about the version ends.
std::string ToString(TraceId trace);

}  // namespace deltawire
