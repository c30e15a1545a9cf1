// The bulk protocol over the simulated network: what PullClient and PullServer do over TCP, with
// the real frames, the real ServedPull behind one end and the real ChunkSink behind the other.
// Owner: a replica's pull; a sender's process. Threads: fibers. Errors: as PullClient's.
#pragma once

#include <memory>
#include <string>

#include "common/net/pull_server.h"
#include "common/net/pull_transport.h"
#include "tests/simulation/network.h"

namespace deltawire::simulation {

/// Bytes of one message: a chunk arrives in pieces, between which anything may happen.
inline constexpr size_t kPieceBytes = 384;

/// `target.host` is the sender's node.
std::unique_ptr<net::PullTransport> NewTransport(Network& network, std::string self,
                                                 net::PullTarget target);

/// One accepted stream of a sender.
void ServeBulk(const std::shared_ptr<Connection>& connection, net::PullSource& source,
               const net::PullServer::Options& options);

}  // namespace deltawire::simulation
