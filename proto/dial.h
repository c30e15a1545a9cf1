// Channels to the daemons with this process's credentials: TLS if they name authorities, and the
// token with every call. A token that would travel in plaintext to another machine is
// kInvalidArgument.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/security/credentials.h"

namespace deltawire {

/// Sets all channels' options: message sizes, no proxy, no retries by gRPC.
void SetControlArguments(grpc::ChannelArguments& arguments);

/// `address` is "host:port" or "unix:/path". SetControlArguments extends `arguments`.
StatusOr<std::shared_ptr<grpc::Channel>> DialControl(const std::string& address,
                                                     security::Credentials& credentials,
                                                     grpc::ChannelArguments arguments);

}  // namespace deltawire
