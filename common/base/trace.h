// The id by which logs follow one version from the trainer to the engines. Both ends compute it
// from what they know of the version, so it does not travel (docs/decisions.md, "A trace id is
// computed").
#pragma once

#include <cstdint>
#include <string>

#include "common/base/identity.h"

namespace deltawire {

/// 0: no version.
struct TraceId {
  uint64_t value = 0;
  friend bool operator==(TraceId, TraceId) = default;
};

/// Returns the trace of the version that an offload or a rollback makes: XXH3-64 of version and
/// attempt, each 8 bytes, little-endian. It is the same at all agents and receivers.
TraceId TraceOf(uint64_t version, uint64_t attempt);
/// Returns the trace of a state. If its attempt is unknown, version, epoch and lineage make it.
TraceId TraceOf(const Identity& identity);

/// Returns "trace=0123456789abcdef", the end of each log line about the version.
std::string ToString(TraceId trace);

}  // namespace deltawire
