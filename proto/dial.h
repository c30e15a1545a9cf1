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

/// `address` is "host:port" or "unix:/path". `arguments` are added to; message sizes and proxies
/// are set here.
StatusOr<std::shared_ptr<grpc::Channel>> DialControl(const std::string& address,
                                                     security::Credentials& credentials,
                                                     grpc::ChannelArguments arguments);

}  // namespace deltawire
