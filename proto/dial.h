// Channels to the daemons, with this process's credentials: TLS where they name authorities, and
// the token with every call. Owner: the caller, of the channel. Threads: any. Cost: none until a
// call. Errors: kInvalidArgument when a token would travel in plaintext to another machine.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/security/credentials.h"

namespace deltawire {

/// What every channel to a daemon has: sizes of messages, no proxy, no retries of gRPC's own.
void SetControlArguments(grpc::ChannelArguments& arguments);

/// `address` is "host:port" or "unix:/path". `arguments`: those of the caller, to which
/// SetControlArguments adds what every channel has.
StatusOr<std::shared_ptr<grpc::Channel>> DialControl(const std::string& address,
                                                     security::Credentials& credentials,
                                                     grpc::ChannelArguments arguments);

}  // namespace deltawire
