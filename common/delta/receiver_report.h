// A receiver's report of its state to an upstream.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/engines_serve.h"
#include "common/base/fields.h"
#include "common/base/group_word.h"
#include "common/base/identity.h"
#include "common/base/receiver_phase.h"
#include "common/delta/pull_stats.h"

namespace deltawire {

/// Bound on the bytes of a report's message that are kept, since operators see it in lists.
inline constexpr size_t kMaxReportMessage = 4096;

struct ReceiverReport {
  Identity committed;
  ReceiverPhase phase = ReceiverPhase::kNone;
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  std::string message;
  uint64_t event = 0;         ///< the number of the last event that the receiver got
  uint64_t sync_request = 0;  ///< the sync request that this report answers; 0: none
  PullStats last_pull;        ///< for status displays only
  GroupReport group;          ///< from a member of a group
  std::string follows;        ///< the relay's address that it follows; empty: this sender
  bool barred = false;        ///< its principal may not use the model any more
  EnginesServe engines;
};

/// The fields that have the same form in the message.
template <FieldsOf<ReceiverReport> T>
void ForEachField(T& report, const auto& f) {
  f("committed", report.committed);
  f("bytes_done", report.bytes_done);
  f("bytes_total", report.bytes_total);
  f("message", report.message);
  f("event", report.event);
  f("sync_request", report.sync_request);
  f("group", report.group);
  f("follows", report.follows);
}

}  // namespace deltawire
