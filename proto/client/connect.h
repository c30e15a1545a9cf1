// Connections of whoever directs the daemons, the tool or a program, and what is said where there
// is none. Owner: the caller, of the channel. Threads: any. Cost: a TCP connection, and where asked
// for a TLS handshake. Errors: kUnavailable when nobody answers, and what to do about it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/security/credentials.h"

namespace deltawire {

/// What messages tell whoever dials to do otherwise. The tool names its options.
struct DialWords {
  std::string_view credentials = "credentials";  ///< what takes their file
  std::string another;                           ///< how another address is named; "": not said
  std::string_view more_time = "a longer timeout allows more";
};

/// Dials and waits until connected: fails at once when the connection is refused, else after
/// `timeout` (0: 10 s). `who`: "sender" or "receiver"; `address`: "host:port".
StatusOr<std::shared_ptr<grpc::Channel>> ConnectControl(std::string_view who,
                                                        const std::string& address,
                                                        security::Credentials& credentials,
                                                        std::chrono::milliseconds timeout,
                                                        const DialWords& words = {});

/// A daemon's answer as our Status, prefixed with the daemon's name and address.
Status CheckAnswer(const grpc::Status& s, std::string_view who, const std::string& address,
                   const DialWords& words = {});

}  // namespace deltawire
