// The choice of a pull's wire version: the newest that both ends know, agreed in OpenPull before a
// stream opens (docs/wire_format.md, "Versions"). Without a common version the error is
// kUnimplemented, without a range kInvalidArgument.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/status.h"
#include "common/wire/frame.h"

namespace deltawire::wire {

/// The oldest version that this release speaks: the previous release's, once that differs from ours
/// (CONTRIBUTING.md, "A new wire version").
inline constexpr uint8_t kOldestWireVersion = kWireVersion;

/// The wire versions that one end speaks, from `oldest` to `newest`. Both are 0 for an end built
/// before versions were agreed.
struct WireVersions {
  uint32_t oldest = 0;
  uint32_t newest = 0;
};
inline constexpr WireVersions kOwnVersions{kOldestWireVersion, kWireVersion};

/// Returns the version for a pull between `ours` and `theirs`, or the oldest of `ours` if theirs
/// are 0. `peer` is for messages, e.g. "receiver node-7".
StatusOr<uint32_t> AgreedVersion(WireVersions ours, WireVersions theirs, std::string_view peer);

}  // namespace deltawire::wire
