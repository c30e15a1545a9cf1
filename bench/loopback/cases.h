// The cases of the loopback suite. Each measures through a cluster and adds its rows.
// A Rig bundles what they share; all its pointers outlive the calls. One thread.
// Invariant between cases: the peer's mapping holds what the trainer's weights hold.
#pragma once

#include "bench/harness/bench.h"
#include "bench/loopback/cluster.h"
#include "bench/loopback/tcp_peer.h"

namespace deltawire::bench {

struct Rig {
  Bench& bench;
  const ModelSource& source;
  Weights& weights;
  TcpPeer& peer;
  ThreadPool& pool;
  size_t streams = 4;
  TcpPeer* tls_peer = nullptr;  ///< null: no case with TLS was asked for
  uint64_t bytes() const { return source.layout.total_bytes(); }
};

/// The first full pull of a version, and one more of it, against bare TCP from memory to memory, or
/// against OpenSSL over bare TCP. Cases: NAME/first, NAME/again.
Status FullPull(const Rig& rig, Cluster& cluster, TcpPeer& peer, const std::string& name,
                double wanted);

/// Publishes that change `density` of the elements (0: recorded Adam steps) to a receiver that
/// follows; against a full sync of the same version, memcmp + apply, and a naive pair list.
Status DeltaSync(const Rig& rig, Cluster& cluster, const std::string& name, double density);

/// The trainer's copy into the half, against memcpy.
Status Offload(const Rig& rig, Cluster& cluster, const std::string& name);

/// How long BeginOffload waits while a receiver pulls everything again and again.
Status TrainerWait(const Rig& rig, Cluster& cluster);

/// Reports the daemons' peak memory so far, and puts no load on them.
void Memory(const Rig& rig, Cluster& cluster);

/// scale/N: registration, publishes, a first commit and a restart of a model of many tiny tensors,
/// with daemons of its own.
Status ScaleCases(Bench& bench);

}  // namespace deltawire::bench
