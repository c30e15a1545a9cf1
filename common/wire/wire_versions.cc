#include "common/wire/wire_versions.h"

#include <algorithm>
#include <string>

namespace deltawire::wire {
namespace {

std::string ToString(WireVersions v) {
  return v.oldest == v.newest ? std::to_string(v.newest)
                              : fmt::format("{} to {}", v.oldest, v.newest);
}

}  // namespace

StatusOr<uint32_t> AgreedVersion(WireVersions ours, WireVersions theirs, std::string_view peer) {
  if (theirs.newest == 0 && theirs.oldest == 0) return ours.oldest;
  if (theirs.oldest == 0 || theirs.oldest > theirs.newest) {
    return Errorf(StatusCode::kInvalidArgument, "{} says that it speaks wire versions {} to {}",
                  peer, theirs.oldest, theirs.newest);
  }
  const uint32_t agreed = std::min(ours.newest, theirs.newest);
  if (agreed < std::max(ours.oldest, theirs.oldest)) {
    return Errorf(StatusCode::kUnimplemented,
                  "{} speaks wire version {}, this end {}: upgrade the older one of both", peer,
                  ToString(theirs), ToString(ours));
  }
  return agreed;
}

}  // namespace deltawire::wire
