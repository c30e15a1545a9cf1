// The cases of the loopback suite. Each measures through a cluster and reports rows.
// A Bench bundles what they share; all its pointers outlive the calls. One thread.
// Invariant between cases: the peer's mapping holds what the workload holds.
#pragma once

#include "bench/harness/report.h"
#include "bench/harness/sample.h"
#include "bench/loopback/cluster.h"
#include "bench/loopback/tcp_peer.h"
#include "bench/loopback/workload.h"

namespace deltawire::bench {

struct Bench {
  const ModelSource* source = nullptr;
  Workload* workload = nullptr;
  TcpPeer* peer = nullptr;
  ThreadPool* pool = nullptr;
  Report* report = nullptr;
  Rounds rounds;
  size_t streams = 4;
  uint64_t bytes() const { return source->layout.total_bytes(); }
};

/// The first full pull of a version, and one more of it (its chunks' checksums are known by then),
/// against bare TCP from memory to memory.
Status FullPull(const Bench& bench, Cluster& cluster);

/// Publishes that change `density` of the elements (0: recorded Adam steps) to a receiver that
/// follows; against a full sync of the same version, memcmp + apply, and a naive pair list.
Status DeltaSync(const Bench& bench, Cluster& cluster, const std::string& name, double density);

/// The trainer's copy into the half, against memcpy.
Status Offload(const Bench& bench, Cluster& cluster, const std::string& name);

/// How long BeginOffload waits while a receiver pulls everything again and again.
Status TrainerWait(const Bench& bench, Cluster& cluster);

/// Registration, publishes, a first commit and a restart of a model of many tiny tensors, with
/// daemons of its own.
Status Scale(size_t tensors, const Rounds& rounds, Report& report);

/// Peak memory of the daemons so far. Adds nothing to the load.
void Memory(const Bench& bench, Cluster& cluster);

}  // namespace deltawire::bench
