// The fleet table of a status page: the receivers that are attached to a sender or a relay, those
// furthest behind first. It shows at most 1,000.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/identity.h"
#include "common/base/receiver_phase.h"
#include "common/metrics/page.h"

namespace deltawire::metrics {

/// A receiver's last report.
struct FleetMember {
  std::string id, peer;
  Identity committed;
  ReceiverPhase phase = ReceiverPhase::kNone;
  uint64_t bytes_done = 0, bytes_total = 0;  ///< of the current pull
  /// The last pull's figures; 0: none yet.
  uint64_t payload_bytes = 0, ahead_bytes = 0;
  double seconds = 0, transfer_seconds = 0;
  double attached_seconds = 0;
  std::string message;
  /// For a receiver with a site: its serving address (empty: it does not serve), and the address
  /// that it follows (empty: the daemon of this page).
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

/// `newest` is the target of all members.
void ShowFleet(Page& page, std::string_view id, const Identity& newest,
               std::vector<FleetMember> members);

}  // namespace deltawire::metrics
