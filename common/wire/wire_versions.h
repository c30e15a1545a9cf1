// Which wire version a pull speaks: the newest that both of its ends know, agreed in OpenPull,
// before a stream is opened. Pure. Errors: kUnimplemented (no version in common), kInvalidArgument
// (no range). Rules: docs/wire_format.md, "Versions".
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/status.h"
#include "common/wire/frame.h"

namespace deltawire::wire {

/// The oldest version that this release still speaks: that of the release before it, once there is
/// one with another version (CONTRIBUTING.md, "A new wire version").
inline constexpr uint8_t kOldestWireVersion = kWireVersion;

/// The wire versions that one end speaks, from `oldest` to `newest`. Both are 0 for an end that
/// does not say: one that was built before versions were agreed.
struct WireVersions {
  uint32_t oldest = 0;
  uint32_t newest = 0;
};
inline constexpr WireVersions kOwnVersions{kOldestWireVersion, kWireVersion};

/// The version for a pull between `ours` and `theirs`; the oldest of `ours` where they do not say.
/// `peer` is for messages, e.g. "receiver node-7".
StatusOr<uint32_t> AgreedVersion(WireVersions ours, WireVersions theirs, std::string_view peer);

}  // namespace deltawire::wire
