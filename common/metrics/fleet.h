// The table of a fleet on a status page: each receiver that is attached to a sender or a relay,
// those that are furthest behind first. Stateless. Threads: any. Cost: a row for each of the first
// 1,000 receivers. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/identity.h"
#include "common/base/receiver_phase.h"
#include "common/metrics/page.h"

namespace deltawire::metrics {

/// What a receiver last said of itself.
struct FleetMember {
  std::string id, peer;
  Identity committed;
  ReceiverPhase phase = ReceiverPhase::kNone;
  uint64_t bytes_done = 0, bytes_total = 0;  ///< of a pull that runs
  /// Of its last pull; 0: there was none.
  uint64_t payload_bytes = 0, ahead_bytes = 0;
  double seconds = 0, transfer_seconds = 0;
  double attached_seconds = 0;
  std::string message;
  /// Of one that says a site: where it serves others (empty: it does not), and the address that it
  /// follows (empty: whoever shows this page).
  std::string site, address, follows;
};

/// Makes a FleetMember of a ReceiverView (common/serving/attachments.h). It is a template because
/// this room may not include that header.
template <typename View>
FleetMember FleetMemberOf(const View& view) {
  const auto& report = view.report;
  return {.id = view.id,
          .peer = view.peer,
          .committed = report.committed,
          .phase = report.phase,
          .bytes_done = report.bytes_done,
          .bytes_total = report.bytes_total,
          .payload_bytes = report.last_pull.payload_bytes,
          .ahead_bytes = report.last_pull.ahead_bytes,
          .seconds = report.last_pull.seconds,
          .transfer_seconds = report.last_pull.transfer_seconds,
          .attached_seconds = view.attached_seconds,
          .message = report.message,
          .site = view.offer.site,
          .address = view.offer.address,
          .follows = report.follows};
}

/// `newest`: what the members are to hold.
void ShowFleet(Page& page, std::string_view id, const Identity& newest,
               std::vector<FleetMember> members);

}  // namespace deltawire::metrics
