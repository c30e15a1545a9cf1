#include "sender/agent/offload/ended_offloads.h"

#include <algorithm>
#include <utility>

namespace deltawire::sender {
namespace {

constexpr size_t kEndedKept = 64;

}  // namespace

void EndedOffloads::Add(Ended ended) {
  ended_.push_back(std::move(ended));
  if (ended_.size() > kEndedKept) ended_.pop_front();
}

const EndedOffloads::Ended* EndedOffloads::Find(uint64_t lease) const {
  const auto found =
      std::ranges::find_if(ended_, [&](const Ended& e) { return e.name.lease == lease; });
  return found == ended_.end() ? nullptr : &*found;
}

const EndedOffloads::Ended* EndedOffloads::FindFailed(uint64_t version) const {
  for (auto e = ended_.rbegin(); e != ended_.rend(); ++e) {
    if (e->name.version == version && !e->why.ok()) return &*e;
  }
  return nullptr;
}

Status EndedOffloads::MissedEnd(const OffloadRequest& r) {
  for (auto e = ended_.rbegin(); e != ended_.rend(); ++e) {
    if (e->why.ok() || !e->name.Matches(r)) continue;
    return e->ranks.insert(r.rank).second ? e->why : absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace deltawire::sender
