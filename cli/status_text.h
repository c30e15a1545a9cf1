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
  bool with_changes = false;  ///< the sender was asked what the newest version changed
};

/// Warnings about receivers with another history than the sender's, or other bytes for a version.
std::vector<std::string> StatusWarnings(const DaemonAnswers& s);

/// Everything, the warnings as its last lines.
std::string StatusText(const DaemonAnswers& s);

}  // namespace deltawire::cli
