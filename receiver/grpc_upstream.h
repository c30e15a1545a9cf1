// Upstream over gRPC: the receiver's client of the sender's PullService. An attachment has a
// reading and a writing thread, so Send never blocks its caller. A newer progress report replaces
// one that was not sent yet.
#pragma once

#include <memory>
#include <string>

#include "common/security/credentials.h"
#include "receiver/attach/upstream.h"

namespace deltawire::receiver {

/// `sender` is "host:port" of the sender's control address, dialled with `credentials`. `offer`
/// describes this receiver to the sender.
std::unique_ptr<Upstream> MakeGrpcUpstream(const std::string& sender,
                                           const std::string& receiver_id,
                                           std::shared_ptr<security::Credentials> credentials,
                                           SiteOffer offer = {});

}  // namespace deltawire::receiver
