// Connections of programs that direct the daemons: the tool, and others through the C ABI. Owner:
// the caller, of the channel. Threads: any. Cost: a TCP connection and, with TLS, a handshake; a
// failure also costs the diagnosis. Errors: kUnavailable when no daemon answers, with the reason
// and the remedy.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>

#include "common/base/status.h"
#include "proto/client/diagnosis.h"

namespace deltawire {

/// Dials and waits until connected: fails at once when the connection is refused, else after
/// `timeout` (0: 10 s).
StatusOr<std::shared_ptr<grpc::Channel>> ConnectControl(const DialedPeer& peer,
                                                        std::chrono::milliseconds timeout);

/// Whether ConnectControl failed because nothing listens at the address.
bool IsAbsent(const Status& s);

/// A daemon's answer as our Status, prefixed with the daemon's name and address. For UNIMPLEMENTED
/// it asks the daemon for its role.
Status CheckAnswer(const grpc::Status& s, const DialedPeer& peer);

}  // namespace deltawire
