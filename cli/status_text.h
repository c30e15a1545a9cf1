// What `deltawire status` shows for people: tables of the two daemons' answers, and what no column
// has a place for. Pure functions. Owner: none. Threads: any. Cost: some string building for each
// model, receiver and engine. Errors: an answer that is missing is shown as its error.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "proto/deltawire/v1/receiver.pb.h"
#include "proto/deltawire/v1/sender.pb.h"

namespace deltawire::cli {

/// The daemons' answers, or an error for a daemon that did not answer.
struct DaemonAnswers {
  std::string sender_address, receiver_address;
  StatusOr<v1::SenderStatusResponse> sender = absl::UnknownError("not asked");
  v1::ListReceiversResponse attached = {};
  StatusOr<v1::ReceiverStatusResponse> receiver = absl::UnknownError("not asked");
  bool sender_named = false, receiver_named = false;  ///< by the user, and not by default
  bool with_changes = false;  ///< the sender was asked what the newest version changed
};

/// Warnings about receivers with another history than the sender's, or other bytes for a version.
std::vector<std::string> StatusWarnings(const DaemonAnswers& s);

/// Everything, the warnings as its last lines, within `width` columns; 0: any width.
std::string StatusText(const DaemonAnswers& s, size_t width = 0);

/// A peer's address; gRPC writes it as "ipv4:127.0.0.1:37552".
std::string PeerText(const std::string& peer);
/// "118 MB/s, 200 ms, bbr, 1.02 % again", or "-".
std::string LinkText(const v1::LinkStatus& link);

}  // namespace deltawire::cli
