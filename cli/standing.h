// How what a receiver holds stands to what its sender has: behind, of another history, other bytes.
// Pure functions over identities, for status. No errors.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/identity.h"

namespace deltawire::cli {

enum class Relation : uint8_t {
  kUnknown,       ///< one of them has nothing
  kSame,          ///< the same bytes
  kBehind,        ///< an earlier state of the same history
  kAhead,         ///< a later one: the sender has lost what it had published
  kOtherLineage,  ///< of a sender that began anew; the receiver will fetch what differs
  kOtherBytes,    ///< the same number, and not the same bytes: this must not be
};

struct Standing {
  Relation relation = Relation::kUnknown;
  uint64_t versions = 0;  ///< behind or ahead by so much, within an epoch
};

/// `part`: the sender has a part of the model, so roots and lineages are not the receiver's. An
/// identity without a lineage or root, of an older daemon, is taken by its number.
Standing StandingOf(const Identity& held, const Identity& newest, bool part = false);

/// For a table: "0", "3", "epoch", "ahead", "lineage", "BYTES" or "-".
std::string BehindText(const Standing& standing);
/// What to say of it, or "" when a receiver on its way looks so.
std::string Warning(const Standing& standing, const Identity& held, const Identity& newest);

}  // namespace deltawire::cli
