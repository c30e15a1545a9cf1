#include "sender/agent/version_history.h"

#include <algorithm>

#include "common/base/trace.h"

namespace deltawire::sender {

void VersionHistory::Add(const VersionInfo& info) {
  MutexLock lock(mu_);
  entries_.push_back({.info = info, .receivers = 0, .delivered_seconds = 0, .slowest = {}});
  if (entries_.size() > kKept) entries_.pop_front();
}

std::optional<double> VersionHistory::CountCommit(const Identity& id, const PullStats& pull,
                                                  int64_t unix_nanos) {
  // A receiver of several agents has another lineage and root than each of them, but one trace.
  const TraceId trace = TraceOf(id);
  MutexLock lock(mu_);
  const auto found = std::find_if(entries_.rbegin(), entries_.rend(), [&](const Entry& e) {
    return TraceOf(e.info.identity) == trace;
  });
  if (found == entries_.rend()) return std::nullopt;
  // The wall clock may have been set back meanwhile.
  const double seconds =
      std::max(0.0, static_cast<double>(unix_nanos - found->info.ready_unix_nanos) * 1e-9);
  ++found->receivers;
  if (seconds >= found->delivered_seconds) {
    found->delivered_seconds = seconds;
    found->slowest = pull;
  }
  return seconds;
}

std::vector<VersionHistory::Entry> VersionHistory::recent() const {
  MutexLock lock(mu_);
  return {entries_.begin(), entries_.end()};
}

}  // namespace deltawire::sender
