#include "receiver/pull/applied_deltas.h"

#include <utility>

namespace deltawire::receiver {

void AppliedDeltas::Add(StagedDelta&& applied) {
  if (!keep_ || applied.bytes > limit_) return;
  MutexLock lock(mu_);
  bytes_ += applied.bytes;
  deltas_.push_back(std::move(applied));
  while (bytes_ > limit_) {
    bytes_ -= deltas_.front().bytes;
    deltas_.pop_front();
  }
}

std::vector<AppliedDelta> AppliedDeltas::All() const {
  std::vector<AppliedDelta> all;
  MutexLock lock(mu_);
  for (const StagedDelta& d : deltas_) {
    all.push_back({d.header.chunk, d.header.digest_before, d.header.digest_after, d.fast()});
  }
  return all;
}

void AppliedDeltas::Clear() {
  MutexLock lock(mu_);
  deltas_.clear();
  bytes_ = 0;
}

}  // namespace deltawire::receiver
