// The relation of a receiver's version to its sender's: the same, behind, ahead, of another
// history, or with other bytes.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/identity.h"

namespace deltawire::cli {

enum class Relation : uint8_t {
  kUnknown,       ///< one of the two has no version
  kSame,          ///< the same bytes
  kBehind,        ///< an earlier state of the same history
  kAhead,         ///< the sender lost a state that it had published
  kOtherLineage,  ///< the sender began anew; the receiver will fetch the differences
  kOtherBytes,    ///< the same number but other bytes: this must never happen
};

struct Standing {
  Relation relation = Relation::kUnknown;
  uint64_t versions = 0;  ///< versions behind or ahead, within an epoch
};

/// `part` means that the sender has a part of the model, so its root and lineage differ from the
/// receiver's. An identity without a lineage or root, from an older daemon, is compared by number
/// only.
Standing StandingOf(const Identity& held, const Identity& newest, bool part = false);

/// Returns a table's cell: "0", "3", "epoch", "ahead", "lineage", "BYTES" or "-".
std::string BehindText(const Standing& standing);
/// Returns a warning, or "" if the standing is normal for a receiver that follows its sender.
std::string Warning(const Standing& standing, const Identity& held, const Identity& newest);

}  // namespace deltawire::cli
