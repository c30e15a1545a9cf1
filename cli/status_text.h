// The text of `deltawire status`: tables of the two daemons' answers, and the facts that have no
// column. A missing answer is shown as its error.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "proto/deltawire/v1/receiver.pb.h"
#include "proto/deltawire/v1/sender.pb.h"

namespace deltawire::cli {

/// The daemons' answers, or the error of a daemon that did not answer.
struct DaemonAnswers {
  std::string sender_address, receiver_address;
  StatusOr<v1::SenderStatusResponse> sender = absl::UnknownError("not asked");
  v1::ListReceiversResponse attached = {};
  StatusOr<v1::ReceiverStatusResponse> receiver = absl::UnknownError("not asked");
  bool sender_named = false, receiver_named = false;  ///< by the user, and not by default
  bool with_changes = false;  ///< the sender was asked for the newest version's changes
};

/// Returns warnings about receivers whose history or bytes differ from the sender's.
std::vector<std::string> StatusWarnings(const DaemonAnswers& s);

/// Returns the whole text, with the warnings last, within `width` columns (0: any width).
std::string StatusText(const DaemonAnswers& s, size_t width = 0);

/// Shortens a peer's address, which gRPC writes as "ipv4:127.0.0.1:37552".
std::string PeerText(const std::string& peer);
/// Returns "118 MB/s, 200 ms, bbr, 1.02 % again", or "-".
std::string LinkText(const v1::LinkStatus& link);

}  // namespace deltawire::cli
