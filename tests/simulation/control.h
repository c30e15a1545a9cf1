// The control connection over the simulated network: what grpc_upstream.cc and the sender's service
// do over gRPC, without the messages' encoding.
// Owner: a replica; a sender's process. Threads: fibers. Errors: as gRPC's.
#pragma once

#include <memory>
#include <string>

#include "receiver/upstream.h"
#include "tests/simulation/sender_node.h"

namespace deltawire::simulation {

struct UpstreamOptions {
  std::string node;  ///< the receiver's
  std::string receiver_id;
  std::string peer;            ///< as the sender sees it; another one after a restart
  double lost_events = 0;      ///< share of events that never arrive
  bool drop_attempts = false;  ///< planted: attempts are not handed on
  bool numbers_only = false;   ///< planted: a state with the numbers of the committed one is it
};

std::unique_ptr<receiver::Upstream> NewUpstream(Network& network, SenderNode& sender,
                                                const UpstreamOptions& options, Random random);

/// One attachment at the sender's end.
void ServeAttachment(const std::shared_ptr<Connection>& connection, sender::Agent& agent);

}  // namespace deltawire::simulation
