// Connections for programs that direct the daemons: the tool and, through the C ABI, others. If no
// daemon answers, the error is kUnavailable with the reason and the remedy. A failure also takes
// the time of the diagnosis.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>

#include "common/base/status.h"
#include "proto/client/diagnosis.h"

namespace deltawire {

/// Dials and waits until connected. Fails at once if the connection is refused, else after
/// `timeout` (0: 10 s).
StatusOr<std::shared_ptr<grpc::Channel>> ConnectControl(const DialedPeer& peer,
                                                        std::chrono::milliseconds timeout);

/// Returns whether ConnectControl failed because no process listens at the address.
bool IsAbsent(const Status& s);

/// Converts a daemon's answer to our Status, prefixed with the daemon's name and address. For
/// UNIMPLEMENTED it asks the daemon for its role.
Status CheckAnswer(const grpc::Status& s, const DialedPeer& peer);

}  // namespace deltawire
