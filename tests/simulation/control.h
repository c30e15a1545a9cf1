// The control connection over the simulated network, in place of grpc_upstream.cc and the sender's
// service over gRPC, without encoding of messages. Owner: a replica; a sender's process. Threads:
// fibers. Cost: none but messages. Errors: as gRPC's.
#pragma once

#include <memory>
#include <string>

#include "receiver/attach/upstream.h"
#include "tests/simulation/host_node.h"
#include "tests/simulation/random.h"

namespace deltawire::simulation {

struct UpstreamOptions {
  std::string node;  ///< the receiver's node
  std::string receiver_id;
  /// The peer that the sender sees, but for the connection's number. It changes with a restart.
  std::string peer;
  double lost_events = 0;      ///< share of events that never arrive
  bool drop_attempts = false;  ///< planted: attempts are not passed on
  /// Planted: any state with the committed (epoch, version) counts as committed.
  bool numbers_only = false;
};

std::unique_ptr<receiver::Upstream> NewUpstream(Network& network, HostNode& sender,
                                                const UpstreamOptions& options, Random random);

/// Serves one attachment at the end of a sender or a relay.
void ServeAttachment(const std::shared_ptr<Connection>& connection, PullHost& host);

}  // namespace deltawire::simulation
