// The bulk protocol over the simulated network, in place of PullClient and PullServer over TCP:
// with the real frames, the real ServedPull behind one end and the real ChunkSink behind the other.
// Owner: a replica's pull; a sender's process. Threads: fibers. Cost: a message per kPieceBytes.
// Errors: as PullClient's.
#pragma once

#include <memory>
#include <string>

#include "common/net/pull_server.h"
#include "common/net/pull_transport.h"
#include "tests/simulation/network.h"

namespace deltawire::simulation {

/// Bytes of one message: a chunk arrives in pieces, between which other fibers and faults may act.
inline constexpr size_t kPieceBytes = 384;

/// A transport whose `target.host` is the name of the sender's node.
std::unique_ptr<net::PullTransport> NewTransport(Network& network, std::string self,
                                                 net::PullTarget target);

/// Serves one stream that a sender accepted, until it ends.
void ServeBulk(const std::shared_ptr<Connection>& connection, net::PullSource& source,
               const net::PullServer::Options& options);

}  // namespace deltawire::simulation
